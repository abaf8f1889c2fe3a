"""Shared code of the scripts for Python clients: the server address and the report of checks."""

import json
import os
import sys
import traceback

ROOT = os.environ["CAPSTAN_URL"]
BASE_URL = f"{ROOT}/v1"
# A server with an embedding model, without keys.
EMBEDDER_URL = f"{os.environ['CAPSTAN_EMBEDDER_URL']}/v1"
KEY, UNKNOWN_KEY, FOREIGN_KEY, SPENT_KEY = (os.environ[name] for name in ("CAPSTAN_KEY", "CAPSTAN_UNKNOWN_KEY", "CAPSTAN_FOREIGN_KEY", "CAPSTAN_SPENT_KEY"))
MODEL = "demo"
QUESTION = [{"role": "user", "content": "What is Capstan?"}]
COUNT = [{"role": "user", "content": "Count from 1 to 5."}]
COUNTED = "1, 2, 3, 4, 5"
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get the current weather for a location.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "City name"}}, "required": ["city"], "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
PERSON = [{"role": "user", "content": "Extract as JSON: Anna is 31 years old."}]


def run(client, checks):
    """Runs every check (name: function) and prints one line of JSON for each."""
    failed = 0
    for name, check in checks.items():
        try:
            check()
            note = ""
        except Exception as error:  # noqa: BLE001: any error of a client is a finding
            note = f"{type(error).__name__}: {error}"[:300]
            if os.environ.get("CAPSTAN_TRACE"):
                traceback.print_exc()
            failed += 1
        print(json.dumps({"client": client, "check": name, "ok": note == "", "note": note}), flush=True)
    sys.exit(1 if failed else 0)


def expect(actual, wanted):
    assert actual == wanted, f"expected {wanted!r}, got {actual!r}"


def expect_in(part, whole):
    assert part in whole, f"expected {part!r} in {whole!r}"


def expect_raises(kind, call, **attributes):
    try:
        call()
    except kind as error:
        for name, wanted in attributes.items():
            expect(getattr(error, name, None), wanted)
        return error
    raise AssertionError(f"expected {kind}, but nothing was raised")


def check_person(text_or_object):
    person = json.loads(text_or_object) if isinstance(text_or_object, str) else text_or_object
    assert set(person) == {"name", "age"} and isinstance(person["name"], str) and isinstance(person["age"], int), f"not the schema's: {person!r}"
