"""Joins collected parts to the corpus: `python join.py npm.json pypi.json > corpus.json`."""

import json
import sys

MAX_PER_PACKAGE = 30
MAX_BYTES = 12_000
MAX_PROSE = 24

groups = {}
for part in sys.argv[1:]:
    for item in json.load(open(part)):
        groups.setdefault((item["source"], item["version"], item["license"]), []).append(item)


def is_complete(schema):
    """Whether the schema does not refer to other files."""
    if isinstance(schema, list):
        return all(map(is_complete, schema))
    if not isinstance(schema, dict):
        return True
    reference = schema.get("$ref")
    return not (isinstance(reference, str) and ".json" in reference) and all(map(is_complete, schema.values()))


def shortened(value):
    """Cuts prose: the corpus records schemas, not documentation."""
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_prose = lambda key, item: "description" in key.lower() and isinstance(item, str)
    return {key: item[:MAX_PROSE] if is_prose(key, item) else shortened(item) for key, item in value.items()}


def without_dialect(schema):
    return json.dumps({key: value for key, value in schema.items() if key != "$schema"}, sort_keys=True)


known = set()
packages = []
for (source, version, license), items in groups.items():
    chosen = []
    for item in items:
        key = without_dialect(item["schema"])
        if key in known or len(key) > MAX_BYTES or not is_complete(item["schema"]):
            continue
        known.add(key)
        chosen.append(item)
    # All kinds of zod and pydantic, and a sample of the other packages.
    if source not in ["npm:zod", "pypi:pydantic"]:
        chosen = chosen[:: -(-len(chosen) // MAX_PER_PACKAGE) or 1]
    schemas = {item["name"]: shortened(item["schema"]) for item in chosen}
    packages.append({"source": source, "version": version, "license": license, "schemas": schemas})

lines = []
for package in packages:
    head = json.dumps({key: package[key] for key in ["source", "version", "license"]})[:-1]
    body = ",\n".join(f"{json.dumps(name)}: {json.dumps(schema, ensure_ascii=False)}" for name, schema in package["schemas"].items())
    lines.append(f'{head}, "schemas": {{\n{body}\n}}}}')
print("[\n" + ",\n".join(lines) + "\n]")
