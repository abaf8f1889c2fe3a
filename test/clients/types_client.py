"""Whether the bodies and events of the server have the types of the official clients, which do not check them."""

import json
import urllib.request
from typing import Annotated, get_args

import anthropic
import openai
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import InputTokenCountResponse, Response, ResponseItemList, ResponseStreamEvent
from pydantic import Field, TypeAdapter

from checks import BASE_URL, COUNT, EMBEDDER_URL, KEY, MODEL, PERSON, QUESTION, SCHEMA, TOOL, WEATHER, run

# The client's union does not say that the type decides, so that an error would name all members.
ResponseEvent = Annotated[get_args(ResponseStreamEvent)[0], Field(discriminator="type")]
FUNCTION = TOOL["function"]
RESPONSES_TOOL = {"type": "function", **FUNCTION}
MESSAGES_TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]}
JSON_SCHEMA = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}

CHATS = {
    "text": {"messages": QUESTION},
    "choices": {"messages": QUESTION, "n": 2, "temperature": 1, "seed": 3},
    "log-probabilities": {"messages": QUESTION, "logprobs": True, "top_logprobs": 3},
    "tools": {"messages": WEATHER, "tools": [TOOL]},
    "a function": {"messages": WEATHER, "functions": [FUNCTION]},
    "structured output": {"messages": PERSON, "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
    "a limit": {"messages": COUNT, "max_completion_tokens": 3},
}
RESPONSES = {
    "text": {"input": QUESTION[0]["content"], "instructions": "Be brief."},
    "log-probabilities": {"input": QUESTION, "top_logprobs": 3, "include": ["message.output_text.logprobs"]},
    "tools": {"input": WEATHER, "tools": [RESPONSES_TOOL]},
    "a custom tool": {"input": WEATHER, "tools": [{"type": "custom", "name": "run"}], "tool_choice": "required", "max_output_tokens": 50},
    "structured output": {"input": PERSON, "text": {"format": JSON_SCHEMA}},
    "a limit": {"input": COUNT, "max_output_tokens": 3},
    "all roles": {"input": [*QUESTION, {"role": "assistant", "content": "A runtime."}, {"role": "developer", "content": "Be brief."}, *COUNT]},
}
MESSAGES = {
    "text": {"messages": QUESTION, "system": [{"type": "text", "text": "Be brief."}]},
    "tools": {"messages": WEATHER, "tools": [MESSAGES_TOOL]},
    "a required tool": {"messages": QUESTION, "tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}},
    "structured output": {"messages": PERSON, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "thinking": {"messages": QUESTION, "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1500},
    "a stop sequence": {"messages": COUNT, "stop_sequences": ["3"]},
    "a limit": {"messages": COUNT, "max_tokens": 3},
    "no output": {"messages": COUNT, "max_tokens": 0},
}


def open_url(path, body=None, base=BASE_URL):
    data = None if body is None else json.dumps({"model": MODEL, **body}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(base + path, data, headers))  # noqa: S310: the URL is ours


def fetch(path, kind, body=None, base=BASE_URL):
    with open_url(path, body, base) as reply:
        value = json.load(reply)
    TypeAdapter(kind).validate_python(value)
    return value


def stream(path, kind, body):
    """Checks each event."""
    adapter = TypeAdapter(kind)
    num_events = 0
    with open_url(path, {**body, "stream": True}) as reply:
        for line in reply:
            name, _, data = line.decode().strip().partition(": ")
            if name != "data" or data == "[DONE]" or json.loads(data).get("type") == "ping":
                continue
            adapter.validate_python(json.loads(data))
            num_events += 1
    assert num_events > 2, f"the stream has {num_events} events"


def check_chat(body):
    fetch("/chat/completions", ChatCompletion, body)
    stream("/chat/completions", ChatCompletionChunk, {**body, "stream_options": {"include_usage": True}})


def check_response(body):
    path = f"/responses/{fetch('/responses', Response, body)['id']}"
    fetch(path, Response)
    fetch(f"{path}/input_items", ResponseItemList)
    fetch("/responses/input_tokens", InputTokenCountResponse, body)
    stream("/responses", ResponseEvent, body)


def check_message(body):
    whole = {"max_tokens": 200, **body}
    fetch("/messages", Message, whole)
    fetch("/messages/count_tokens", MessageTokensCount, whole)
    stream("/messages", RawMessageStreamEvent, whole)


def check_models():
    fetch(f"/models/{MODEL}", Model)


def check_embeddings():
    fetch("/embeddings", CreateEmbeddingResponse, {"model": "embedder", "input": ["a", "b"]}, EMBEDDER_URL)


def checks_of(interface, check, bodies):
    return {f"{interface}, {name}": lambda body=body: check(body) for name, body in bodies.items()}


run(f"types of openai {openai.__version__} and anthropic {anthropic.__version__} (PyPI)", {
    **checks_of("chat", check_chat, CHATS), **checks_of("responses", check_response, RESPONSES), **checks_of("messages", check_message, MESSAGES),
    "models": check_models, "embeddings": check_embeddings,
})
