"""The official openai package from PyPI."""

import json

import openai
from pydantic import BaseModel, Field

from checks import (BASE_URL, COUNT, COUNTED, EMBEDDER_URL, FOREIGN_KEY, KEY, MODEL, PERSON, QUESTION, SCHEMA, SPENT_KEY, TOOL, UNKNOWN_KEY, WEATHER, check_person, expect, expect_in, expect_raises, run)

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)


def other(key):
    return openai.OpenAI(base_url=BASE_URL, api_key=key, max_retries=0)


def ask(messages=QUESTION, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, **options})


def models():
    expect([model.id for model in client.models.list()], [MODEL])
    expect(client.models.retrieve(MODEL).object, "model")


def chat():
    answer = ask()
    expect_in("Capstan", answer.choices[0].message.content)
    expect(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)


def stream():
    text, usage = "", None
    for chunk in ask(COUNT, stream=True, stream_options={"include_usage": True}):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    expect(text, COUNTED)
    assert usage.completion_tokens > 0


def tools_round_trip():
    first = ask(WEATHER, tools=[TOOL]).choices[0]
    expect(first.finish_reason, "tool_calls")
    call = first.message.tool_calls[0]
    expect((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))
    second = ask([*WEATHER, first.message, {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21}'}], tools=[TOOL]).choices[0]
    expect(second.finish_reason, "stop")
    expect_in("21", second.message.content)


def tools_streamed():
    with client.chat.completions.stream(model=MODEL, messages=WEATHER, tools=[TOOL], temperature=0) as events:
        for _ in events:
            pass
        call = events.get_final_completion().choices[0].message.tool_calls[0]
    expect(json.loads(call.function.arguments), {"city": "Paris"})


def tools_required():
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        call = ask([{"role": "user", "content": "Hello!"}], tools=[TOOL], tool_choice=choice, temperature=0, max_tokens=200).choices[0].message.tool_calls[0]
        expect(list(json.loads(call.function.arguments)), ["city"])


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


def structured_parse():
    parsed = client.chat.completions.parse(model=MODEL, messages=PERSON, response_format=Person, temperature=0).choices[0].message.parsed
    assert isinstance(parsed, Person)


def structured_hot():
    for seed in range(5):
        answer = ask(PERSON, temperature=1.5, seed=seed, max_tokens=200, response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}})
        check_person(answer.choices[0].message.content)


def structured_extra():
    expect_in(ask(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}).choices[0].message.content, ("yes", "no"))


def logprobs():
    answer = ask(COUNT, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    # The token that ended the completion is included, as in vLLM.
    expect(b"".join(bytes(entry.bytes) for entry in content[:-1]).decode(), COUNTED)
    assert all(len(entry.top_logprobs) == 3 for entry in content)


def completions():
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5, temperature=0, logprobs=1, echo=True)
    assert answer.choices[0].text.startswith("Once upon"), answer.choices[0].text
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5, temperature=0, stream=True) if chunk.choices)
    expect(answer.choices[0].text, "Once upon" + text)


def embeddings():
    embedder = openai.OpenAI(base_url=EMBEDDER_URL, api_key="any", max_retries=0)
    texts = ["What is Capstan?", "Größe 😀"]
    # The client asks for base64, unless the request names a format.
    response = embedder.embeddings.create(model="embedder", input=texts)
    expect([item.index for item in response.data], [0, 1])
    expect([len(item.embedding) for item in response.data], [64, 64])
    floats = embedder.embeddings.create(model="embedder", input=texts, encoding_format="float")
    expect([item.embedding for item in response.data], [item.embedding for item in floats.data])
    expect(response.usage.prompt_tokens, len("".join(texts).encode()))
    expect(len(embedder.embeddings.create(model="embedder", input=[1, 2], dimensions=7).data[0].embedding), 7)
    ranked = embedder.post("/rerank", body={"query": texts[0], "documents": texts[::-1]}, cast_to=object)
    expect([result["index"] for result in ranked["results"]], [1, 0])
    expect_raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="a"), status_code=400, param="model", code="unsupported_task")


def abandon_stream():
    events = ask([{"role": "user", "content": "Count from 1 to 50."}], stream=True)
    next(iter(events))
    events.close()


def error_400():
    error = expect_raises(openai.BadRequestError, lambda: ask(temperature=5), status_code=400, param="temperature", code="invalid_value", type="invalid_request_error")
    expect_in("temperature", str(error))


def error_400_length():
    expect_raises(openai.BadRequestError, lambda: ask([{"role": "user", "content": "word " * 100_000}]), code="context_length_exceeded")


def error_401():
    expect_raises(openai.AuthenticationError, lambda: other(UNKNOWN_KEY).models.list(), status_code=401, code="invalid_api_key")


def error_403():
    expect_raises(openai.PermissionDeniedError, lambda: other(FOREIGN_KEY).models.list(), status_code=403, code="permission_denied")


def error_404():
    expect_raises(openai.NotFoundError, lambda: client.chat.completions.create(model="other", messages=QUESTION), status_code=404, code="model_not_found", param="model")


def error_429():
    def twice():
        for _ in range(2):
            other(SPENT_KEY).chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1)

    error = expect_raises(openai.RateLimitError, twice, status_code=429)
    assert int(error.response.headers["retry-after"]) > 0


run(f"openai {openai.__version__} (PyPI)", {
    "models": models, "chat": chat, "stream": stream, "tools, round trip": tools_round_trip, "tools, streamed": tools_streamed, "tools, required and named": tools_required,
    "structured output, parsed": structured_parse, "structured output, temperature 1.5": structured_hot, "structured output, extras": structured_extra, "log-probabilities": logprobs, "completions": completions, "embeddings": embeddings,
    "stream, abandoned": abandon_stream, "error 400": error_400, "error 400, length": error_400_length, "error 401": error_401, "error 403": error_403, "error 404": error_404, "error 429": error_429,
})
