"""The litellm package from PyPI, which calls the server as a self-hosted vLLM."""

import gc
import importlib.metadata
import json

import litellm
from pydantic import BaseModel

from checks import BASE_URL, COUNT, COUNTED, FOREIGN_KEY, KEY, MODEL, PERSON, QUESTION, SCHEMA, SPENT_KEY, TOOL, UNKNOWN_KEY, WEATHER, check_person, expect, expect_in, expect_raises, run

litellm.suppress_debug_info = True


def ask(messages=QUESTION, key=KEY, model=MODEL, **options):
    return litellm.completion(model=f"hosted_vllm/{model}", api_base=BASE_URL, api_key=key, messages=messages, max_retries=0, num_retries=0, **{"temperature": 0, **options})


def chat():
    answer = ask()
    expect_in("Capstan", answer.choices[0].message.content)
    assert answer.usage.completion_tokens > 0


def read_stream(messages, **options):
    chunks = list(ask(messages, stream=True, **options))
    # NOTE: litellm leaves the reader of the connection suspended after [DONE]. If it is collected during the next
    # request, httpcore locks up.
    gc.collect()
    return chunks


def stream():
    expect("".join(chunk.choices[0].delta.content or "" for chunk in read_stream(COUNT) if chunk.choices), COUNTED)


def tools_round_trip():
    first = ask(WEATHER, tools=[TOOL]).choices[0]
    expect(first.finish_reason, "tool_calls")
    call = first.message.tool_calls[0]
    expect(json.loads(call.function.arguments), {"city": "Paris"})
    second = ask([*WEATHER, first.message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}], tools=[TOOL])
    expect_in("21", second.choices[0].message.content)


def tools_streamed():
    whole = litellm.stream_chunk_builder(read_stream(WEATHER, tools=[TOOL]))
    expect(json.loads(whole.choices[0].message.tool_calls[0].function.arguments), {"city": "Paris"})


def tools_required():
    call = ask([{"role": "user", "content": "Hello!"}], tools=[TOOL], tool_choice="required", temperature=0, max_tokens=200).choices[0].message.tool_calls[0]
    expect(list(json.loads(call.function.arguments)), ["city"])


class Person(BaseModel):
    name: str
    age: int


def structured():
    answer = ask(PERSON, response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}})
    check_person(answer.choices[0].message.content)
    Person.model_validate_json(ask(PERSON, response_format=Person).choices[0].message.content)


def text_completion():
    assert litellm.text_completion(model=f"text-completion-openai/{MODEL}", api_base=BASE_URL, api_key=KEY, prompt="Once upon", max_tokens=5).choices[0].text


def error_400():
    expect_raises(litellm.BadRequestError, lambda: ask(temperature=5), status_code=400)


def error_400_length():
    expect_raises(litellm.ContextWindowExceededError, lambda: ask([{"role": "user", "content": "word " * 100_000}]))


def error_401():
    expect_raises(litellm.AuthenticationError, lambda: ask(key=UNKNOWN_KEY), status_code=401)


def error_403():
    # NOTE: not all of its providers for compatible servers have an error type for this status.
    expect_raises((litellm.PermissionDeniedError, litellm.APIError), lambda: ask(key=FOREIGN_KEY), status_code=403)


def error_404():
    expect_raises(litellm.NotFoundError, lambda: ask(model="other"), status_code=404)


def error_429():
    expect_raises(litellm.RateLimitError, lambda: [ask(key=SPENT_KEY, max_tokens=1) for _ in range(2)], status_code=429)


run(f"litellm {importlib.metadata.version('litellm')}", {
    "chat": chat, "stream": stream, "tools, round trip": tools_round_trip, "tools, streamed": tools_streamed, "tools, required": tools_required, "structured output": structured, "completions": text_completion,
    "error 400": error_400, "error 400, length": error_400_length, "error 401": error_401, "error 403": error_403, "error 404": error_404, "error 429": error_429,
})
