"""Collects the JSON Schemas of pydantic models in packages of PyPI: `python collect.py > pypi.json`."""

import importlib
import importlib.metadata
import inspect
import ipaddress
import json
import pkgutil
import subprocess
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union
from uuid import UUID

import pydantic

MODULES = {
    "openai": ["openai.types"],
    "anthropic": ["anthropic.types"],
    "mcp": ["mcp.types"],
    "groq": ["groq.types"],
    "cohere": ["cohere.types"],
    "mistralai": ["mistralai.models", "mistralai.client.models"],
    "ollama": ["ollama._types"],
    "openapi-pydantic": ["openapi_pydantic.v3.v3_1"],
    "fastapi": ["fastapi.openapi.models"],
    "google-genai": ["google.genai.types"],
    "langchain-core": ["langchain_core.messages", "langchain_core.documents", "langchain_core.outputs"],
}
SERVERS = {"mcp-server-fetch": [], "mcp-server-git": [], "mcp-server-time": ["--local-timezone=UTC"]}
MAX_BYTES = 6_000
MAX_PER_PACKAGE = 25

found = []


def add(package, name, schema):
    meta = importlib.metadata.metadata(package)
    licence = meta.get("License-Expression") or (meta.get("License") or "none named").splitlines()[0][:60]
    found.append({"source": f"pypi:{package}", "version": meta["Version"], "license": licence, "name": name, "schema": schema})


def models_of(name):
    try:
        module = importlib.import_module(name)
    except Exception:
        return
    yield from (value for _, value in inspect.getmembers(module, inspect.isclass))
    for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
        yield from models_of(f"{name}.{info.name}")


def add_models(package, modules):
    schemas = {}
    for module in modules:
        for model in models_of(module):
            if not issubclass(model, pydantic.BaseModel) or model.__name__ in schemas:
                continue
            try:
                schema = model.model_json_schema()
            except Exception:
                continue
            if 150 < len(json.dumps(schema)) < MAX_BYTES:
                schemas[model.__name__] = schema
    names = sorted(schemas)
    for name in names[:: max(1, len(names) // MAX_PER_PACKAGE)][:MAX_PER_PACKAGE]:
        add(package, name, schemas[name])


class Colour(str, Enum):
    red = "red"
    blue = "blue"


class Point(NamedTuple):
    x: float
    y: float


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tricks: list[str] = []


class Tree(pydantic.BaseModel):
    value: int
    children: list["Tree"] = []


FIELDS = {
    "str": str, "int": int, "float": float, "bool": bool, "bytes": bytes, "any": Any, "none": None,
    "datetime": datetime, "date": date, "time": time, "timedelta": timedelta, "decimal": Decimal, "uuid": UUID,
    "uuid4": pydantic.UUID4, "path": Path, "file": pydantic.FilePath, "enum": Colour, "literal": Literal["a", 1, None],
    "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address, "ipany": pydantic.IPvAnyAddress,
    "network": ipaddress.IPv4Network, "url": pydantic.HttpUrl, "any_url": pydantic.AnyUrl,
    "email": pydantic.EmailStr, "secret": pydantic.SecretStr, "json": pydantic.Json, "base64": pydantic.Base64Str,
    "positive": pydantic.PositiveInt, "non_negative": pydantic.NonNegativeFloat, "strict": pydantic.StrictInt,
    "list": list[int], "set": set[str], "frozenset": frozenset[int], "set_of_enum": set[Colour], "dict": dict[str, int],
    "int_keys": dict[int, str], "enum_keys": dict[Colour, int], "tuple": tuple[int, str], "tuple_rest": tuple[int, ...],
    "named_tuple": Point, "optional": Optional[str], "union": Union[int, str, list[float]],
    "pattern": Annotated[str, pydantic.Field(pattern=r"^\d{3}-[A-Z]+$")],
    "bounded": Annotated[str, pydantic.Field(min_length=2, max_length=9)],
    "range": Annotated[int, pydantic.Field(ge=1, le=10)], "open": Annotated[float, pydantic.Field(gt=0, lt=1)],
    "multiple": Annotated[int, pydantic.Field(multiple_of=5, ge=0, le=100)],
    "cents": Annotated[Decimal, pydantic.Field(max_digits=8, decimal_places=2)],
    "items": Annotated[list[str], pydantic.Field(min_length=1, max_length=3)],
    "model": Cat, "discriminated": Annotated[Union[Cat, Dog], pydantic.Field(discriminator="kind")], "recursive": Tree,
    "described": Annotated[str, pydantic.Field(description="d", examples=["a"], deprecated=True, title="T")],
    "extra": Annotated[str, pydantic.Field(json_schema_extra={"x-order": 1, "widget": "area"})],
}


def add_fields():
    for name, kind in FIELDS.items():
        add("pydantic", name, pydantic.create_model("Model", value=(kind, ...)).model_json_schema())
    everything = pydantic.create_model("All", **{name: (kind, None) for name, kind in list(FIELDS.items())[:12]})
    add("pydantic", "many", everything.model_json_schema(mode="serialization"))
    for extra in ["allow", "forbid"]:
        config = pydantic.ConfigDict(extra=extra)
        add("pydantic", f"extra {extra}", pydantic.create_model("Model", __config__=config, a=(str, ...)).model_json_schema())


def add_server(package, args):
    command = [str(Path(sys.executable).parent / package), *args]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "corpus", "version": "1"}}
    for message in [
        {"id": 1, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list", "params": {}},
    ]:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        if "id" in message:
            answer = json.loads(server.stdout.readline())
    server.kill()
    for tool in answer["result"]["tools"]:
        add(package, f"{tool['name']} input", tool["inputSchema"])


add_fields()
for package, modules in MODULES.items():
    add_models(package, modules)
for package, args in SERVERS.items():
    add_server(package, args)
json.dump(found, sys.stdout)
