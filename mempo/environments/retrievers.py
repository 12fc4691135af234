"""Search: BM25 over a corpus of our own, and clients of the field's two search servers.

A retriever answers many queries at once, and a query that cannot be served gets a `ToolError` in
its place: one bad call never costs its neighbours theirs.
"""

from __future__ import annotations

import os
import time
import unicodedata
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import bm25s
import httpx
import Stemmer

from mempo.config import Environment
from mempo.environments.corpus import to_passage
from mempo.environments.world import ToolError
from mempo.types import Passage

SearchResult = list[Passage] | ToolError
R = TypeVar("R")

TOKEN = "MEMPO_RETRIEVER_TOKEN"  # in the environment: settings hold no secrets

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)  # seconds; a cold index answers its first query late
_REPLY_S = 120.0  # a whole reply, however steadily it trickles
_REPLY_BYTES = 64 * 2**20  # far above any batch of passages
_BUSY = frozenset({429, 502, 503, 504})
_WORDS = r"(?u)\b\w+\b"  # single characters too: "Malcolm X", "Apollo 8"


class Retriever(Protocol):
    """Finds passages for queries."""

    def search(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """At most `k` passages per query, best first, or the error of that query."""
        ...

    def check(self) -> None:
        """Raise a ValueError that names the setting to change if searching cannot work."""
        ...


def open_retriever(settings: Environment, passages: Sequence[Passage]) -> Retriever:
    """The retriever that `environment.retriever` names; `passages` are what bm25 indexes."""
    match settings.retriever:
        case "bm25":
            return Bm25Retriever(passages)
        case "search_r1":
            return SearchR1Client(settings.retriever_url)
        case "recall":
            return RecallClient(settings.retriever_url)


class Bm25Retriever:
    """BM25 over passages in memory: English stems, no stop words, titles counted twice.

    Accents are folded on both sides, so "Rontgen" finds "Röntgen". Passages that share no word
    with the query are not returned. Source: Robertson & Zaragoza (2009), as implemented by bm25s.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = list(passages)
        self._stem = Stemmer.Stemmer("english")
        self._index = bm25s.BM25()
        words = self._words([f"{p.title} {p.title} {p.text}" for p in self._passages])
        self._silent = not any(words)  # no passage says anything, which bm25s cannot index
        if not self._silent:
            self._index.index(words, show_progress=False)

    def search(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """At most `k` passages per query, best first; empty where nothing matches."""
        if not queries:
            return []
        if self._silent:
            return [[] for _ in queries]
        found, scores = self._index.retrieve(
            self._words(queries),
            k=min(k, len(self._passages)),
            show_progress=False,
            backend_selection="numpy",  # never jax: the same choice on every machine
        )
        return [
            [self._passages[i] for i, score in zip(row, row_scores, strict=True) if score > 0]
            for row, row_scores in zip(found, scores, strict=True)
        ]

    def check(self) -> None:
        """Nothing can be wrong any more: the index is in memory."""

    def _words(self, texts: Sequence[str]) -> list[list[str]]:
        tokens = bm25s.tokenize(
            [_fold(text) for text in texts],
            stopwords="english",
            stemmer=self._stem,
            token_pattern=_WORDS,
            return_ids=False,
            show_progress=False,
        )
        assert isinstance(tokens, list)
        return tokens


class SearchR1Client:
    """Client of the Search-R1 server (MEM1 uses it too): POST /retrieve, many queries a call."""

    def __init__(self, url: str, *, batch_size: int = 64, retries: int = 4, wait_s: float = 0.5):
        """`url`: http://host:port, with or without /retrieve; waits double from `wait_s`."""
        self._server = _Server(url, "/retrieve", retries=retries, wait_s=wait_s)
        self._batch_size = batch_size

    def search(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """At most `k` passages per query, best first, or the error of that query."""
        results: list[SearchResult] = []
        for start in range(0, len(queries), self._batch_size):
            results += self._batch(queries[start : start + self._batch_size], k)
        return results

    def check(self) -> None:
        """Raise a ValueError naming environment.retriever_url if the server does not answer."""
        _check(self.search)

    def _batch(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        # return_scores: false crashes the common server.
        request = {"queries": list(queries), "topk": k, "return_scores": True}

        def parse(reply: Any) -> list[SearchResult]:
            found = reply["result"]
            if len(found) != len(queries):
                raise ValueError(f"{len(found)} results for {len(queries)} queries")
            return [_passages(items, k) for items in found]

        try:
            return self._server.post(request, parse)
        except _Refused as error:
            if len(queries) == 1:
                return [error]
            # The server fails a batch as a whole: halve it until the bad query stands alone.
            middle = len(queries) // 2
            return self._batch(queries[:middle], k) + self._batch(queries[middle:], k)
        except ToolError as error:
            return [error] * len(queries)


class RecallClient:
    """Client of the ReCall family's server: POST /search, one query a call."""

    def __init__(self, url: str, *, threads: int = 8, retries: int = 4, wait_s: float = 0.5):
        """`url`: http://host:port, with or without /search; `threads` calls at the same time."""
        self._server = _Server(url, "/search", retries=retries, wait_s=wait_s)
        self._threads = threads

    def search(self, queries: Sequence[str], k: int) -> list[SearchResult]:
        """At most `k` passages per query, best first, or the error of that query."""
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(lambda query: self._one(query, k), queries))

    def check(self) -> None:
        """Raise a ValueError naming environment.retriever_url if the server does not answer."""
        _check(self.search)

    def _one(self, query: str, k: int) -> SearchResult:
        request = {"query": query, "top_n": k, "return_score": False}
        try:
            return self._server.post(request, lambda reply: _passages(reply, k))
        except ToolError as error:
            return error


class _Refused(ToolError):
    """The server answered, but not with passages; another query may fare better."""


class _Server:
    """One endpoint, with time-outs and a bounded number of attempts."""

    def __init__(self, url: str, endpoint: str, *, retries: int, wait_s: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"environment.retriever_url: {url!r} is no address; write http://host:port"
            )
        url = url.rstrip("/")
        self._url = url if url.endswith(endpoint) else url + endpoint
        self._retries = retries
        self._wait_s = wait_s
        self._client = httpx.Client(timeout=_TIMEOUT, headers=_authorization())
        weakref.finalize(self, self._client.close)  # connections stay open until then

    def post(self, request: Mapping[str, Any], parse: Callable[[Any], R]) -> R:
        """The parsed reply.

        Raises:
            _Refused: an HTTP error, or a reply of another shape.
            ToolError: no connection, or a busy server, after all retries.
        """
        trouble = ""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(self._wait_s * 2 ** (attempt - 1))
            try:
                response = self._bounded(request)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
                if isinstance(error, httpx.ReadTimeout):
                    break  # it is there and too slow: asking again would only add to its load
                continue
            except httpx.DecodingError as error:
                raise _Refused(
                    f"environment.retriever_url: {self._url} sent what cannot be unpacked ({error})"
                ) from error
            if response.status_code in _BUSY:
                trouble = f"HTTP {response.status_code}"
                continue
            return self._parsed(response, parse)
        raise ToolError(
            f"environment.retriever_url: {self._url} cannot be reached ({trouble}); start the "
            "search server or correct the address"
        )

    def _bounded(self, request: Mapping[str, Any]) -> httpx.Response:
        """The whole response.

        Raises:
            _Refused: it is too long; fewer queries at once may fit.
            ToolError: it takes too long to come; asking again would only take longer.
        """
        end = time.monotonic() + _REPLY_S
        content = bytearray()
        with self._client.stream("POST", self._url, json=dict(request)) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _REPLY_BYTES:
                    raise _Refused(
                        f"environment.retriever_url: {self._url} sends more than "
                        f"{_REPLY_BYTES / 2**20:g} MiB in one reply; lower environment.top_k"
                    )
                if time.monotonic() > end:
                    raise ToolError(
                        f"environment.retriever_url: {self._url} was still sending its reply after "
                        f"{_REPLY_S:g} s; it is too slow to be of use"
                    )
        return httpx.Response(
            response.status_code, content=bytes(content), request=response.request
        )

    def _parsed(self, response: httpx.Response, parse: Callable[[Any], R]) -> R:
        try:
            return parse(response.raise_for_status().json())
        except httpx.HTTPStatusError:
            reason = f"HTTP {response.status_code}"
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise _Refused(
            f"environment.retriever_url: {self._url} sent no passages ({reason}); check that "
            "environment.retriever names this server's protocol"
        )


def _authorization() -> dict[str, str]:
    token = os.environ.get(TOKEN, "").strip()
    if not (token.isascii() and token.isprintable()):  # an HTTP error would repeat it
        raise ValueError(f"{TOKEN}: a token is one line of ASCII characters; correct it")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _check(search: Callable[[Sequence[str], int], list[SearchResult]]) -> None:
    [result] = search(["Who wrote Hamlet?"], 1)
    if isinstance(result, ToolError):
        raise ValueError(str(result)) from result


def _passages(items: Any, k: int) -> list[Passage]:
    if not isinstance(items, list):  # an empty object or text would pass for "nothing found"
        raise TypeError(f"{type(items).__name__} instead of a list of passages")
    return [to_passage(item) for item in items[:k]]


def _fold(text: str) -> str:
    """The text without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
