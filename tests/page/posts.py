"""What a stranger, or a page, posts to Gradio's own routes."""

import json
import urllib.request

from tests.page.server import Server


def functions(server: Server) -> dict[str, int]:
    """Numbers of all functions by their names, hidden ones too."""
    return {each["api_name"]: each["id"] for each in json.loads(server.get("/config")[1])["dependencies"]}


def arguments(server: Server, api_name: str, **given: object) -> list:
    """The data of a post to a named endpoint: what is given by name, the schema's defaults for the rest."""
    schema = json.loads(server.get("/gradio_api/info")[1])["named_endpoints"][f"/{api_name}"]["parameters"]
    assert given.keys() <= {each["parameter_name"] for each in schema}
    return [given.get(each["parameter_name"], each["parameter_default"]) for each in schema]


def send(server: Server, path: str, body: dict) -> dict:
    asked = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return json.loads(answer.read())


def join(server: Server, function: int, data: list, session: str) -> str:
    """Post to a function and do not wait for the answer; the event's id."""
    body = {"fn_index": function, "data": data, "session_hash": session}
    return send(server, "/gradio_api/queue/join", body)["event_id"]


def post(server: Server, function: int, data: list, session: str = "0123456789ab") -> dict:
    """Post to a function as a page does, hidden or not; the last message of its stream."""
    event = join(server, function, data, session)
    with urllib.request.urlopen(f"{server.url}/gradio_api/queue/data?session_hash={session}", timeout=20) as stream:
        for line in stream:
            message = json.loads(line[5:]) if line.startswith(b"data:") else {}
            if message.get("msg") == "process_completed" and message["event_id"] == event:
                return message
    raise AssertionError("the stream ended without an answer")
