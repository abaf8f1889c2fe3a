"""Conversations to render with every template. `only` and `without` restrict them to families."""

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city, in °C or °F.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city, e.g. \"Zürich\" or 東京"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Look something up <b>fast</b> & 'safely'",
    "parameters": {"type": "object", "properties": {
        "query": {"type": "string"},
        "filters": {"type": "array", "items": {"type": "object", "properties": {"field": {"type": "string"}, "max": {"type": "number"}}}}},
        "required": ["query"]}}}
TOOLS = [WEATHER, SEARCH]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(call_id, name, arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


ZURICH = call("a1B2c3D4e", "get_weather", {"city": "Zürich", "unit": "celsius", "days": 2})
NESTED = call("x9Y8z7W6v", "search", {"query": "a \"quoted\" <word> & more\n🙂", "filters": [{"field": "price", "max": 9.5}, {}], "deep": {"none": None, "yes": True}})
THOUGHT = "<think>\nThe user greets me.\nI greet back.\n</think>\n\nHello!"

# name, messages and options of each conversation
CONVERSATIONS = [
    {"name": "one user turn", "messages": [user("What is a capstan?")]},
    {"name": "system and user", "messages": [system("Answer briefly."), user("Name three rivers of Europe.")]},
    {"name": "empty system", "messages": [system(""), user("Hi")]},
    {"name": "several turns", "messages": [system("You are a sailor."), user("Hello"), assistant("Ahoy!"), user("What is 7 + 12?"),
                                           assistant("19."), user("And 3 more?")]},
    {"name": "no generation prompt", "add_generation_prompt": False, "messages": [user("Hello"), assistant("Hi there.")]},
    {"name": "unicode", "messages": [system("Réponds en français 🇫🇷."), user("Привет, мир! 你好，世界 — \u00e9 and e\u0301, 👩‍👩‍👧‍👦 🤖\u200d, ﬁn, ½, ไทย, ‎العربية"),
                                     assistant("¡Olé! ✅"), user("한국어로 해 주세요 😀😀")]},
    {"name": "whitespace and code", "messages": [user("  \n\nTrim me?\t \n"), assistant("```python\ndef f(x):\n    return x  # {{ not a template }}\n```\n\n"),
                                                 user("{% raw %} <|im_start|>x</s>[INST] tabs\tand\r\nlines   and 12345 6.7e-8   ")]},
    {"name": "tools offered", "tools": TOOLS, "messages": [user("What is the weather in Zürich?")]},
    {"name": "tools and system", "tools": [WEATHER], "messages": [system("Use tools when you can."), user("Weather?")]},
    {"name": "tool call and result", "tools": TOOLS, "messages": [
        user("What is the weather in Zürich?"), assistant("", tool_calls=[ZURICH]),
        result("a1B2c3D4e", "{\"temperature\": 21.5, \"sky\": \"klar ☀️\"}")]},
    {"name": "tool call with nested arguments", "tools": [SEARCH], "messages": [
        user("Find it."), assistant("", tool_calls=[NESTED]), result("x9Y8z7W6v", "found\n2 things"), assistant("Two things."), user("Thanks")]},
    {"name": "two calls at once", "tools": TOOLS, "messages": [  # refused by the template of Llama 3.1
        user("Both please"), assistant("", tool_calls=[ZURICH, NESTED]), result("a1B2c3D4e", "21"), result("x9Y8z7W6v", "none")]},
    {"name": "call without content", "tools": [WEATHER], "without": ["smollm2", "deepseek-v3"], "messages": [  # their templates want a string
        user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [ZURICH]}, result("a1B2c3D4e", "21")]},
    {"name": "two users in a row", "messages": [user("one"), user("two")]},  # refused by the templates of Mistral
    {"name": "thinking off", "only": ["qwen3"], "kwargs": {"enable_thinking": False}, "messages": [user("Quick: 2 + 2?")]},
    {"name": "thinking on", "only": ["qwen3"], "kwargs": {"enable_thinking": True}, "messages": [user("Slowly: 2 + 2?")]},
    {"name": "earlier thoughts dropped", "only": ["qwen3"], "messages": [user("Hi"), assistant(THOUGHT), user("How are you?")]},
    {"name": "thoughts kept between calls", "only": ["qwen3"], "tools": [WEATHER], "messages": [
        user("Weather in Zürich?"), assistant("Let me look.", reasoning_content="I need the tool.\n", tool_calls=[ZURICH]),
        result("a1B2c3D4e", "21")]},
    {"name": "thinking off with tools", "only": ["qwen3"], "kwargs": {"enable_thinking": False}, "tools": TOOLS, "messages": [
        system("Be quick."), user("Weather in Bern?")]},
    {"name": "another date", "only": ["llama3.1"], "kwargs": {"date_string": "20 Nov 2026"}, "messages": [user("What day is it?")]},
    {"name": "tools in the system turn", "only": ["llama3.1"], "kwargs": {"date_string": "20 Nov 2026", "tools_in_user_message": False},
     "tools": TOOLS, "messages": [system("Be exact."), user("Weather in Bern?")]},
]

# Plain texts to encode and decode.
TEXTS = [
    "Hello world", " leading space", "  two leading spaces", "trailing space ", "", " ", "   ", "\n", "\n\n\n", "\t\tx", "a\r\nb\rc",
    "The quick brown fox jumps over the lazy dog.", "I'm sure they'll say we've can't DON'T It's", "12345678 0.5 1,000,000 ½ ²³",
    "def f(x):\n    if x > 0:\n        return x ** 2  # square\n    return -x\n", "{\"a\": [1, 2.5e-3, null], \"b\": \"c\\n\"}",
    "你好，世界！今天天气很好。", "日本語のテキストです。", "한국어 문장입니다", "Привет, как дела?", "العربية والعبرية עברית",
    "🙂", "👩‍👩‍👧‍👦 family, 🇨🇭 flag, 👍🏽 thumb", "e\u0301 is not \u00e9 until composed; ﬁ stays", "zero\u200bwidth\u00a0space\u3000wide",
    "naïve café façade — “quotes” … ‘single’", "a" * 40, "word" + " " * 17 + "word", "CamelCaseIdentifier snake_case_name kebab-case",
    "http://example.com/a?b=c&d=%20#e", "x=y;z!=w&&(a||b)", "𝕬𝖑𝖕𝖍𝖆 \U0001d54f \ufeff bom", "capstan anchor harbour ahoy",
    "▁already▁meta", "<0x41> is not a byte", "mixed 中文 and English 和 emoji😀end",
]
