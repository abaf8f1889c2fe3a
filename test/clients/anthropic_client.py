"""The official anthropic package from PyPI."""

import anthropic
from anthropic import beta_tool
from pydantic import BaseModel

from checks import COUNT, COUNTED, FOREIGN_KEY, KEY, MODEL, PERSON, QUESTION, ROOT, SPENT_KEY, UNKNOWN_KEY, WEATHER, expect, expect_in, expect_raises, run


def other(key):
    return anthropic.Anthropic(base_url=ROOT, api_key=key, max_retries=0)


client = other(KEY)


def ask(messages=QUESTION, of=client, **options):
    return of.messages.create(**{"model": MODEL, "max_tokens": 200, "messages": messages, **options})


@beta_tool
def get_weather(city: str) -> str:
    """Get the current weather for a location.

    Args:
        city: City name
    """
    return f'{{"city": "{city}", "temperature": 21}}'


class Person(BaseModel):
    name: str
    age: int


def chat():
    answer = ask()
    expect_in("Capstan", answer.content[0].text)
    expect(answer.stop_reason, "end_turn")


def stream():
    with client.messages.stream(model=MODEL, max_tokens=200, messages=COUNT) as events:
        expect("".join(events.text_stream), COUNTED)
        assert events.get_final_message().usage.output_tokens > 0


def tool_runner():
    for is_stream in (False, True):
        runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=200, tools=[get_weather], messages=WEATHER, stream=is_stream)
        messages = [turn.get_final_message() if is_stream else turn for turn in runner]
        expect([message.content[0].type for message in messages], ["tool_use", "text"])


def parse():
    answer = client.messages.parse(model=MODEL, max_tokens=200, messages=PERSON, output_format=Person)
    expect(answer.parsed_output, Person(name="Anna", age=31))


def count():
    expect(client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens, ask().usage.input_tokens + ask().usage.cache_read_input_tokens)


def models():
    expect_in(MODEL, [model.id for model in client.models.list()])
    expect(client.models.retrieve(MODEL).display_name, MODEL)
    expect_raises(anthropic.AuthenticationError, lambda: other(UNKNOWN_KEY).models.list(), status_code=401)
    expect_raises(anthropic.PermissionDeniedError, lambda: other(FOREIGN_KEY).models.list(), status_code=403)


def search_result():
    found = {"type": "search_result", "source": "https://example.com", "title": "Capstan", "content": [{"type": "text", "text": "A runtime."}]}
    assert ask([{"role": "user", "content": [found, {"type": "text", "text": QUESTION[0]["content"]}]}]).content


def no_output():
    expect(ask(max_tokens=0).usage.output_tokens, 0)


def abandon_stream():
    with client.messages.stream(model=MODEL, max_tokens=200, messages=COUNT) as events:
        next(iter(events))


def error_400():
    expect_raises(anthropic.BadRequestError, lambda: ask(max_tokens=-1), status_code=400)


def error_401():
    expect_raises(anthropic.AuthenticationError, lambda: ask(of=other(UNKNOWN_KEY)), status_code=401)


def error_403():
    expect_raises(anthropic.PermissionDeniedError, lambda: ask(of=other(FOREIGN_KEY)), status_code=403)


def error_404():
    expect_raises(anthropic.NotFoundError, lambda: ask(model="other"), status_code=404)


def error_429():
    expect_raises(anthropic.RateLimitError, lambda: [ask(of=other(SPENT_KEY), max_tokens=1) for _ in range(2)], status_code=429)


run(f"anthropic {anthropic.__version__} (PyPI)", {
    "chat": chat, "stream": stream, "tools, run by the client": tool_runner, "structured output, parsed": parse, "tokens": count, "models": models, "search result": search_result, "no output": no_output, "stream, abandoned": abandon_stream,
    "error 400": error_400, "error 401": error_401, "error 403": error_403, "error 404": error_404, "error 429": error_429,
})
