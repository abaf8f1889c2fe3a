"""The langchain-openai package from PyPI."""

import importlib.metadata

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from checks import BASE_URL, COUNT, COUNTED, FOREIGN_KEY, KEY, MODEL, PERSON, SPENT_KEY, UNKNOWN_KEY, WEATHER, expect, expect_in, expect_raises, run


def model(key=KEY, name=MODEL, **options):
    return ChatOpenAI(base_url=BASE_URL, api_key=key, model=name, max_retries=0, **{"temperature": 0, **options})


@tool
def get_weather(city: str) -> str:
    """Get the current weather for a location."""
    return '{"temperature": 21}'


def chat():
    answer = model().invoke("What is Capstan?")
    expect_in("Capstan", answer.content)
    assert answer.usage_metadata["output_tokens"] > 0


def stream():
    expect("".join(chunk.content for chunk in model(stream_usage=True).stream(COUNT[0]["content"])), COUNTED)


def tools_round_trip():
    messages = [HumanMessage(WEATHER[0]["content"])]
    bound = model().bind_tools([get_weather])
    first = bound.invoke(messages)
    expect([(call["name"], call["args"]) for call in first.tool_calls], [("get_weather", {"city": "Paris"})])
    second = bound.invoke([*messages, first, ToolMessage(get_weather.invoke(first.tool_calls[0]["args"]), tool_call_id=first.tool_calls[0]["id"])])
    expect_in("21", second.content)


def tools_streamed():
    whole = None
    for chunk in model().bind_tools([get_weather]).stream(WEATHER[0]["content"]):
        whole = chunk if whole is None else whole + chunk
    expect(whole.tool_calls[0]["args"], {"city": "Paris"})


def tools_required():
    answer = model(temperature=0, max_tokens=200).bind_tools([get_weather], tool_choice="any").invoke("Hello!")
    expect(list(answer.tool_calls[0]["args"]), ["city"])


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def structured():
    for method in ("json_schema", "function_calling"):
        person = model(max_tokens=300).with_structured_output(Person, method=method).invoke(PERSON[0]["content"])
        assert isinstance(person, Person), f"{method}: {person!r}"


def batch():
    expect([answer.content for answer in model().batch([COUNT[0]["content"]] * 4)], [COUNTED] * 4)


def error_400():
    expect_raises(openai.BadRequestError, lambda: model(temperature=5).invoke("Hi"), param="temperature")


def error_401():
    expect_raises(openai.AuthenticationError, lambda: model(UNKNOWN_KEY).invoke("Hi"))


def error_403():
    expect_raises(openai.PermissionDeniedError, lambda: model(FOREIGN_KEY).invoke("Hi"))


def error_404():
    expect_raises(openai.NotFoundError, lambda: model(name="other").invoke("Hi"))


def error_429():
    expect_raises(openai.RateLimitError, lambda: [model(SPENT_KEY, max_tokens=1).invoke("Hi") for _ in range(2)])


run(f"langchain-openai {importlib.metadata.version('langchain-openai')}", {
    "chat": chat, "stream": stream, "batch": batch, "tools, round trip": tools_round_trip, "tools, streamed": tools_streamed, "tools, required": tools_required, "structured output": structured,
    "error 400": error_400, "error 401": error_401, "error 403": error_403, "error 404": error_404, "error 429": error_429,
})
