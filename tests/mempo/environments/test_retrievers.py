import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from mempo.config import Environment
from mempo.environments.retrievers import (
    Bm25Retriever,
    RecallClient,
    SearchR1Client,
    open_retriever,
)
from mempo.environments.world import ToolError
from mempo.types import Passage

PARIS = {"id": "7", "contents": '"Paris"\nParis lies on the Seine.'}
ROME = {"id": "8", "contents": '"Rome"\nRome lies on the Tiber.'}
PARIS_PASSAGE = Passage("7", "Paris", "Paris lies on the Seine.")
ROME_PASSAGE = Passage("8", "Rome", "Rome lies on the Tiber.")

Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]


class SearchServer(ThreadingHTTPServer):
    """A server on a free port of this machine that keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.authorization: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news: tests print nothing."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open, as those of real servers do
    disable_nagle_algorithm = True  # head and body are written apart
    server: SearchServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.authorization.append(self.headers["Authorization"])
        status, reply = self.server.answer(self.path, body)
        content = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], SearchServer]]:
    """serve(answer): a running server; `answer` maps (path, request) to (status, reply)."""
    servers: list[SearchServer] = []

    def start(answer: Answer) -> SearchServer:
        server = SearchServer(answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def search_r1(path: str, request: dict[str, Any]) -> tuple[int, Any]:
    """Search-R1's server: a list per query; without scores it crashes, as does an empty query."""
    if path != "/retrieve":
        return 404, {"detail": "Not Found"}
    if not isinstance(request.get("queries"), list) or not isinstance(request.get("topk"), int):
        return 422, {"detail": "Field required"}
    if not request.get("return_scores") or "bad" in request["queries"]:
        return 500, b"Internal Server Error"
    found = [(PARIS, 9.5), (ROME, 3.25)]
    items = [{"document": document, "score": score} for document, score in found]
    return 200, {"result": [items[: request["topk"]] if q else [] for q in request["queries"]]}


def search_r1_online(path: str, request: dict[str, Any]) -> tuple[int, Any]:
    """The web variant: neither ids nor scores, and more results than were asked for."""
    documents = [{"contents": d["contents"]} for d in (PARIS, ROME, PARIS)]
    return 200, {"result": [[{"document": d} for d in documents] for _ in request["queries"]]}


def recall(path: str, request: dict[str, Any]) -> tuple[int, Any]:
    """ReCall's server: one query a call; with scores it returns a pair of lists instead."""
    if path != "/search":
        return 404, {"detail": "Not Found"}
    if not isinstance(request.get("query"), str) or not isinstance(request.get("top_n"), int):
        return 422, {"detail": "Field required"}
    if request["query"] == "bad":
        return 500, b"Internal Server Error"
    first = {"id": "q", "contents": f'"{request["query"]}"\nAbout it.'}
    found = [first, PARIS, ROME][: request["top_n"]]
    return 200, [found, [1.0] * len(found)] if request["return_score"] else found


def impatient_search_r1(url: str, **options: Any) -> SearchR1Client:
    return SearchR1Client(url, **({"retries": 2, "wait_s": 0.001} | options))


def impatient_recall(url: str, **options: Any) -> RecallClient:
    return RecallClient(url, **({"retries": 2, "wait_s": 0.001} | options))


BOTH_CLIENTS = pytest.mark.parametrize(
    ("client", "answer"),
    [(impatient_search_r1, search_r1), (impatient_recall, recall)],
    ids=["search_r1", "recall"],
)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- the server of Search-R1 and MEM1


def test_search_r1_answers_each_query_with_its_own_passages(serve):
    server = serve(search_r1)
    found = impatient_search_r1(server.url).search(["river of Paris", "", "Rome"], 2)
    assert found == [[PARIS_PASSAGE, ROME_PASSAGE], [], [PARIS_PASSAGE, ROME_PASSAGE]]
    assert server.asked == [
        {"queries": ["river of Paris", "", "Rome"], "topk": 2, "return_scores": True}
    ]


def test_search_r1_is_always_asked_for_scores(serve):
    server = serve(search_r1)
    client = impatient_search_r1(server.url, batch_size=1)
    client.search(["a", "bad", "c"], 1)
    client.check()
    assert len(server.asked) == 4
    assert all(request["return_scores"] is True for request in server.asked)


def test_web_results_without_ids_get_the_same_name_for_the_same_text(serve):
    server = serve(search_r1_online)
    [first], [second] = (impatient_search_r1(server.url).search(["a"], 3) for _ in range(2))
    assert not isinstance(first, ToolError)
    assert first == second
    assert [(p.title, p.text) for p in first] == [
        (p.title, p.text) for p in (PARIS_PASSAGE, ROME_PASSAGE, PARIS_PASSAGE)
    ]
    assert first[0].id == first[2].id != first[1].id


def test_no_more_passages_than_asked_for_are_kept(serve):
    server = serve(search_r1_online)
    [found] = impatient_search_r1(server.url).search(["a"], 2)
    assert not isinstance(found, ToolError)
    assert [p.title for p in found] == ["Paris", "Rome"]


def test_many_queries_go_in_batches(serve):
    server = serve(search_r1)
    found = impatient_search_r1(server.url, batch_size=3).search([f"q{i}" for i in range(7)], 1)
    assert found == [[PARIS_PASSAGE]] * 7
    assert [len(request["queries"]) for request in server.asked] == [3, 3, 1]
    assert impatient_search_r1(server.url).search([], 1) == []
    assert len(server.asked) == 3


@pytest.mark.parametrize("bad", [[0], [3], [6], [1, 2], [0, 3, 6]])
def test_fault_35_a_query_that_the_server_cannot_take_costs_only_itself(serve, bad):
    server = serve(search_r1)
    queries = ["bad" if i in bad else f"q{i}" for i in range(7)]
    found = impatient_search_r1(server.url).search(queries, 1)
    assert [i for i, result in enumerate(found) if isinstance(result, ToolError)] == bad
    assert all(found[i] == [PARIS_PASSAGE] for i in range(7) if i not in bad)
    assert "sent no passages (HTTP 500)" in str(found[bad[0]])


def test_fewer_results_than_queries_are_an_error_not_a_shift(serve):
    server = serve(lambda path, request: (200, {"result": [[{"document": PARIS}]]}))
    alone = impatient_search_r1(server.url).search(["a"], 1)
    assert alone == [[PARIS_PASSAGE]]
    # Halved until each stands alone, where one result is right.
    assert impatient_search_r1(server.url).search(["a", "b"], 1) == [[PARIS_PASSAGE]] * 2
    server.answer = lambda path, request: (200, {"result": []})
    [error] = impatient_search_r1(server.url).search(["a"], 1)
    assert isinstance(error, ToolError)
    assert "0 results for 1 queries" in str(error)


# --- the server of the ReCall family


def test_recall_is_asked_one_query_a_call_and_answers_in_order(serve):
    server = serve(recall)
    queries = [f"q{i}" for i in range(9)]
    found = impatient_recall(server.url, threads=3).search(queries, 2)
    expected = [[Passage("q", query, "About it."), PARIS_PASSAGE] for query in queries]
    assert found == expected
    assert sorted(request["query"] for request in server.asked) == queries
    assert all(request["top_n"] == 2 for request in server.asked)
    assert impatient_recall(server.url).search([], 1) == []


def test_recall_is_never_asked_for_scores(serve):
    server = serve(recall)
    impatient_recall(server.url).search(["a"], 1)
    assert server.asked == [{"query": "a", "top_n": 1, "return_score": False}]


def test_fault_35_recall_a_failed_call_stays_alone(serve):
    server = serve(recall)
    found = impatient_recall(server.url).search(["a", "bad", "c"], 1)
    assert [isinstance(result, ToolError) for result in found] == [False, True, False]


# --- both


@BOTH_CLIENTS
def test_the_address_may_name_the_endpoint(serve, client, answer):
    server = serve(answer)
    endpoint = "/retrieve" if answer is search_r1 else "/search"
    for url in (
        server.url,
        f"{server.url}/",
        f"{server.url}{endpoint}",
        f"{server.url}{endpoint}/",
    ):
        [found] = client(url).search(["a"], 1)
        assert not isinstance(found, ToolError)


@BOTH_CLIENTS
def test_a_busy_server_is_asked_again(serve, client, answer):
    refusals = iter([503, 429])

    def busy_at_first(path: str, request: dict[str, Any]) -> tuple[int, Any]:
        status = next(refusals, None)
        return (status, b"busy") if status else answer(path, request)

    server = serve(busy_at_first)
    [found] = client(server.url).search(["a"], 1)
    assert not isinstance(found, ToolError)
    assert len(server.asked) == 3


@BOTH_CLIENTS
def test_attempts_are_bounded_and_waits_double(serve, client, answer):
    server = serve(lambda path, request: (502, b"busy"))
    started = time.monotonic()
    [found] = client(server.url, retries=3, wait_s=0.02).search(["a"], 1)
    assert time.monotonic() - started >= 0.02 + 0.04 + 0.08
    assert isinstance(found, ToolError)
    assert "cannot be reached (HTTP 502)" in str(found)
    assert len(server.asked) == 4


@BOTH_CLIENTS
def test_another_http_error_is_not_repeated(serve, client, answer):
    server = serve(lambda path, request: (500, b"Internal Server Error"))
    [found] = client(server.url).search(["a"], 1)
    assert isinstance(found, ToolError)
    assert len(server.asked) == 1


@BOTH_CLIENTS
def test_a_server_that_is_there_and_too_slow_is_asked_once(serve, client, answer, monkeypatch):
    # Long enough that a busy machine has taken the request in before the client gives it up.
    monkeypatch.setattr("mempo.environments.retrievers._TIMEOUT", httpx.Timeout(5, read=0.5))
    released = threading.Event()

    def slow(path: str, request: dict[str, Any]) -> tuple[int, Any]:
        released.wait(5)
        return answer(path, request)

    server = serve(slow)
    [found] = client(server.url).search(["a"], 1)
    released.set()
    assert isinstance(found, ToolError)
    assert "ReadTimeout" in str(found)
    assert len(server.asked) == 1


@BOTH_CLIENTS
def test_a_reply_is_bounded_in_size(serve, client, answer, monkeypatch):
    server = serve(answer)
    assert not isinstance(client(server.url).search(["a"], 1)[0], ToolError)
    monkeypatch.setattr("mempo.environments.retrievers._REPLY_BYTES", 20)
    [found] = client(server.url).search(["a"], 1)
    assert isinstance(found, ToolError)
    assert "in one reply; lower environment.top_k" in str(found)


def test_a_reply_that_trickles_is_given_up_and_not_asked_for_again(serve, monkeypatch):
    monkeypatch.setattr("mempo.environments.retrievers._REPLY_S", -1.0)
    server = serve(search_r1)
    found = impatient_search_r1(server.url).search(["a", "b", "c", "d"], 1)
    assert all("too slow to be of use" in str(one) for one in found)
    assert len(server.asked) == 1


@BOTH_CLIENTS
def test_fault_51_nobody_at_the_address_is_an_error_per_query_and_a_failed_check(client, answer):
    url = f"http://127.0.0.1:{free_port()}"
    found = client(url, retries=0).search(["a", "b"], 1)
    assert len(found) == 2
    for error in found:
        assert isinstance(error, ToolError)
        assert str(error).startswith(f"environment.retriever_url: {url}/")
        assert "cannot be reached (ConnectError" in str(error)
        assert "\n" not in str(error)
    with pytest.raises(ValueError, match="start the search server or correct the address"):
        client(url, retries=0).check()


@BOTH_CLIENTS
def test_check_passes_where_the_server_answers(serve, client, answer):
    server = serve(answer)
    client(server.url).check()
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("client", "answer"), [(impatient_search_r1, recall), (impatient_recall, search_r1)]
)
def test_fault_51_the_wrong_protocol_is_named(serve, client, answer):
    with pytest.raises(ValueError, match=r"HTTP 404.*environment\.retriever names this server's"):
        client(serve(answer).url).check()


@BOTH_CLIENTS
@pytest.mark.parametrize(
    "reply",
    [b"<html>", {}, [], "x", 7, None, {"result": 7}, {"result": [7]}, [[]], [7], [{"id": "1"}],
     {"result": [[{"document": {}}]]}, {"result": [[{"document": None}]]}, {"result": [{"a": 1}]},
     {"result": [{}]},     [{"contents": 7}], {"result": [[{"document": {"contents": None}}]]}],
)  # fmt: skip
def test_replies_of_another_shape_are_errors_never_passages(serve, client, answer, reply):
    if reply == [] and answer is recall:
        return  # nothing found
    [found] = client(serve(lambda path, request: (200, reply)).url).search(["a"], 1)
    assert isinstance(found, ToolError)
    assert "sent no passages" in str(found)
    assert "\n" not in str(found)


@BOTH_CLIENTS
def test_a_token_comes_from_the_environment_alone(serve, client, answer, monkeypatch):
    server = serve(answer)
    client(server.url).search(["a"], 1)
    monkeypatch.setenv("MEMPO_RETRIEVER_TOKEN", "hunter2\n")
    client(server.url).search(["a"], 1)
    assert server.authorization == [None, "Bearer hunter2"]
    monkeypatch.setenv("MEMPO_RETRIEVER_TOKEN", "hunt\ner2")
    with pytest.raises(ValueError, match=r"^MEMPO_RETRIEVER_TOKEN: a token is one line") as error:
        client(server.url)
    assert "er2" not in str(error.value)


@pytest.mark.parametrize("client", [SearchR1Client, RecallClient])
@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host"])
def test_fault_51_an_address_has_to_be_one(client, url):
    with pytest.raises(ValueError, match=r"environment\.retriever_url: .* is no address; write"):
        client(url)


def test_the_setting_chooses_the_retriever():
    url = "http://127.0.0.1:1"
    chosen = [
        open_retriever(Environment(retriever=name, retriever_url=url), [PARIS_PASSAGE])
        for name in ("bm25", "search_r1", "recall")
    ]
    assert [type(retriever) for retriever in chosen] == [
        Bm25Retriever, SearchR1Client, RecallClient,
    ]  # fmt: skip
