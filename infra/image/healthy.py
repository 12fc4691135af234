#!/usr/local/bin/python
"""Exit status 0 if every address given answers with a 2xx: `healthy http://127.0.0.1:8080/health`.

The images have Python but neither curl nor wget.
"""

import sys
import urllib.error
import urllib.request


def main() -> int:
    for address in sys.argv[1:]:
        try:
            with urllib.request.urlopen(address, timeout=5):
                pass  # urlopen raises unless the status is 2xx
        except (OSError, urllib.error.HTTPError) as error:
            print(f"{address}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
