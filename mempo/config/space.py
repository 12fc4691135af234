"""Which values a setting may take in a sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Dimension:
    """One setting of a search space: `choices`, or the numbers from `low` to `high`.

    `step` parts a range evenly (0: any number, or any whole one); with `log` a range is drawn, and
    shown, on a logarithmic scale. `whole`: the setting takes whole numbers.
    """

    setting: str
    choices: tuple[object, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def countable(self) -> bool:
        """Whether a grid can list all of its values."""
        return bool(self.choices or self.step or (self.whole and not self.log))

    @property
    def values(self) -> tuple[object, ...]:
        """All values in order, where it is countable; else the two bounds."""
        if self.choices:
            return self.choices
        if not self.countable:
            return self._number(self.low), self._number(self.high)
        low, high = Decimal(str(self.low)), Decimal(str(self.high))
        step = Decimal(str(self.step or 1))
        count = int((high - low) / step) + 1
        return tuple(self._number(float(low + i * step)) for i in range(count))

    @property
    def ends(self) -> tuple[object, ...]:
        """What has to be valid for all of it to be: every choice, or both bounds."""
        return self.choices or (self._number(self.low), self._number(self.high))

    def _number(self, value: float) -> int | float:
        return int(value) if self.whole else float(value)


def written(value: object) -> str:
    """A value as people read and write it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def shown(value: object) -> str:
    """A value for a table or a line of progress: a number at four digits."""
    return f"{value:.4g}" if isinstance(value, float) else written(value)


def shown_point(point: Mapping[str, object]) -> str:
    """'learner.lr=0.0003, memory.weight=0.5'."""
    return ", ".join(f"{name}={shown(value)}" for name, value in point.items())
