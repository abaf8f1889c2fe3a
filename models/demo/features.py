"""What the model knows by heart of Capstan's features: rows as in facts.py. Most are asked for in the forms of `feature`."""

FORMS = (
    "(Does|Can|Will|Could) (Capstan|the server|it) (support|do|handle|use|work with|offer|have) ({x})",
    "(Does|Can) (Capstan|the server) (support|do|handle|use|work with|offer) ({x})",
    "How (do I|can I|would I|does one|to) (use|get|turn on|set up|enable|start with|try) ({x})(|| in Capstan| with Capstan| here)",
    "(Is|Are) ({x}) (supported|possible|available|there)(|| in Capstan| here)",
    "(What about|Tell me about|Explain|What can you say about|What do you know about|Describe|Anything on) ({x})(|| in Capstan)",
    "({x})(|| in Capstan| with Capstan)",
    "(Is there|Do you have|Does Capstan have|Has Capstan got) (support for|any support for|a way to use|) ({x})",
    "I (want|need|would like|am trying) to use ({x})(|, how| with Capstan|, what do I do)",
    "(Can|May|Could) I (use|have|get) ({x})(| with Capstan| here| in Capstan| on the server)",
    "(What is|What are) ({x})(| in Capstan| for)",
    "How (does|do) ({x}) work(| in Capstan)",
    "(Which|What) (option|flag|command|route) (is|do I need|do I use|is there) for ({x})",
)


def feature(answer, names, *more):
    """A row: the feature under its names in the usual forms, and phrasings that are only its own, as often as those."""
    more = more * max(1, len(FORMS) // max(1, len(more)))
    return (answer, *(form.replace("{x}", names) for form in FORMS), *more)


def command(answer, name, purpose, *more):
    """A row: what a command does, by its name and by its purpose, such as 'download a model|get a model'."""
    return (
        answer,
        f"(What is|What's|What does|Explain|What is the use of) (npx |){name}( do| for)",
        f"(Explain|Describe|Tell me about|What is|What can I do with|When do I use|Why is there|What about) (the command |npx |){name}",
        f"(npx |){name}",
        f"How (do I|can I|to|would I|does one) ({purpose})(| with Capstan)",
        f"(Which|What) command (lets me|do I need to|do I use to|is there to|is used to|do I run to|can) ({purpose})",
        f"(Can|Could|May) (I|Capstan|it) ({purpose})",
        f"I (want|need|would like) to ({purpose})(|, how|, what do I run)",
        f"(Is there|Give me|Tell me|Show me) (a|the) command to ({purpose})",
        f"(What do I|What should I) (type|run|enter) to ({purpose})",
        *more,
    )


FEATURES = [
    (
        "Yes, Capstan is open source under the MIT licence.",
        "Is (Capstan|it|this|the code|this project|Capstan's code|this software) (open source|open-source|open|free|free software|free of charge|free to use|public|proprietary|commercial|closed source|MIT)",
        "(What|Which) (licence|license) (does Capstan have|does it have|is Capstan under|has Capstan|does Capstan use|is it|is it under|is used|covers Capstan|applies)",
        "(What is|What's|Tell me|Show me|Explain) (the|Capstan's|its|your) (licence|license|licence of Capstan|license of Capstan|licensing)",
        "(Can|May) (I|we|my company|anyone|everybody) (use|sell|change|modify|fork|copy|share|distribute) (Capstan|it|the code)(| for free| commercially| in a product| in my company| at work| for money)",
        "(Do I|Must I|Do we|Does one) (have to|need to) (pay|buy a licence|buy a license|pay for Capstan|get a licence)",
        "(How much does|What does) (Capstan|it) cost",
        "(Is|Are) (there a fee|there any costs|the sources available|the source code available|the source public)",
        "(Where is|Can I see|Can I read|Is there|May I see) the (source|source code|code)(| of Capstan)",
        "(Licence|License|The licence|Open source|Open source or not|MIT|Under which licence is Capstan|Is there a licence|Is there a license)",
        "(How|Under which licence|Under what license) is (Capstan|it) (licensed|published|released)",
        "Is Capstan (under the|licensed under) (MIT licence|MIT license|GPL|Apache licence|Apache license)",
    ),
    feature(
        "Use --quantization int8 or int4: the weights then take 8 or 4 bits.",
        "quantization|int8|int4|quantized weights|8 bits|4 bits|8-bit weights|4-bit weights|quantisation|low-bit weights|smaller weights|int8 or int4",
        "How (do I|can I|to) (quantize a model|quantize the weights|make the weights smaller|save memory|make a model smaller|load a model in 4 bits|load a model in 8 bits|quantise a model)",
        "(Can|Does) (Capstan|it|the server) (quantize|quantise) (models|the weights|a model|weights)",
    ),
    (
        "capstan quantize MODEL --out FOLDER writes a model in 8 or 4 bits.",
        "(What is|What's|What does|Explain|What is the use of|Tell me about|Describe) (npx |)capstan quantize( do| for|)",
        "How (do I|can I|to) (keep|save|store|write|export) (a quantized model|quantized weights|the quantized model|the quantized weights)",
        "(Which|What) command (writes|saves|makes|stores) a quantized model",
        "(Can|Does) (Capstan|it) (save|write|export) (a quantized model|quantized models|quantized weights)(| to a folder)",
        "capstan quantize",
    ),
    feature(
        "Capstan runs GGUF files: npx capstan serve FILE.gguf.",
        "GGUF|GGUF files|GGUF models|gguf|a GGUF file|a GGUF model|llama.cpp files|Q4_K_M files|Q4_K_M|a .gguf file",
        "How (do I|can I|to) (serve|run|load|open|start) (a GGUF file|a GGUF model|GGUF files|a file of llama.cpp|my GGUF file)",
        "(Can|Does) (Capstan|it|the server) (read|load|run|open|serve) (GGUF|GGUF files|GGUF models|files of llama.cpp|quantized GGUF files)",
    ),
    command(
        "capstan pull ORG/NAME downloads a model from the hub.",
        "capstan pull",
        "download a model|get a model|pull a model|fetch a model|download models|get a model from the hub|download a model from Hugging Face|get weights|download weights|use a model of the hub|use a model from Hugging Face",
        "(Does|Can) Capstan (download|fetch|pull|get) (models|a model|models from Hugging Face|models from the hub|weights)(| by itself)",
        "(Where|How) do I get (models|a model|more models|other models|a bigger model|weights)",
        "(What is|Tell me about|How do I use) the (hub|Hugging Face hub|model hub)",
    ),
    feature(
        "POST /v1/embeddings embeds texts, if the server runs an embedding model.",
        "embeddings|embedding models|text embeddings|vectors|sentence embeddings|an embedding model|embedding|/v1/embeddings|vector search",
        "How (do I|can I|to) (embed a text|embed texts|get embeddings|make embeddings|compute vectors|turn a text into a vector|get a vector for a text)",
        "(Can|Does) (Capstan|it|the server) (embed texts|make embeddings|compute embeddings|embed|turn texts into vectors)",
    ),
    feature(
        "POST /v1/rerank sorts documents by a query, if the server runs a reranker.",
        "reranking|rerankers|rerank|a reranker|reranking models|/v1/rerank|reranker models|a rerank model",
        "How (do I|can I|to) (rerank|rerank documents|sort documents|score documents|rank documents|sort search results)",
        "(Can|Does) (Capstan|it|the server) (rerank|rerank documents|sort documents by a query|score documents|rank documents)",
    ),
    feature(
        "Capstan runs LoRA adapters on the CPU: --lora-modules NAME=FOLDER.",
        "LoRA|LoRA adapters|adapters|lora|a LoRA adapter|PEFT adapters|several adapters|fine-tuned adapters|an adapter|LoRAs",
        "How (do I|can I|to) (load|serve|run|add) (a LoRA adapter|an adapter|LoRA adapters|LoRA|adapters|my adapter)",
        "(Can|Does) (Capstan|it|the server) (load|run|serve) (LoRA adapters|adapters|a LoRA adapter|many adapters|LoRA)",
    ),
    feature(
        "Capstan serves OpenAI's responses: POST /v1/responses.",
        "/v1/responses|the responses API|OpenAI's responses|the Responses API|OpenAI responses|the responses route|responses of OpenAI",
        "(What is|What does|Explain) (POST |)/v1/responses(| do)",
        "(Which|What) route is for (responses|OpenAI's responses|the responses API)",
    ),
    feature(
        "Capstan serves Anthropic's messages: POST /v1/messages.",
        "/v1/messages|the messages API|Anthropic's messages|the Messages API|the Anthropic API|Anthropic's API|Anthropic's interface|the Anthropic client|an Anthropic client",
        "(What is|What does|Explain) (POST |)/v1/messages(| do)",
        "(Is|Are) (Capstan|the API|the server) (compatible with Anthropic|Anthropic-compatible|like Anthropic's API)",
    ),
    feature(
        "Claude Code and Codex work with Capstan: they use /v1/messages and /v1/responses.",
        "Claude Code|Codex|coding agents|Claude Code and Codex|a coding agent|coding tools|agents that code",
        "(Does|Will|Can) (Claude Code|Codex|a coding agent) (work with|use|talk to|run on|connect to) (Capstan|it|the server)",
        "How (do I|can I|to) connect (Claude Code|Codex|a coding agent)(| to Capstan)",
    ),
    feature(
        "Run npx capstan serve A B: the models load when requests need them.",
        "several models|many models|multiple models|more than one model|two models|several models in one server|models on demand|different models at once",
        "How (do I|can I|to) (serve|run|load|host) (several models|two models|many models|multiple models|more than one model|three models)(| in one server| at once| with one server| at the same time)",
        "(Can|Does) (Capstan|it|the server|one server) (serve|run|load|host|have|hold) (several models|two models|many models|multiple models|more than one model)(| at once| at the same time)",
    ),
    feature(
        "A batch runs a file of requests: POST /v1/files, then POST /v1/batches.",
        "batches|/v1/batches|batch files|the batch API|a batch|batch jobs|a file of requests|offline batches|OpenAI's batches|/v1/files",
        "How (do I|can I|to) (run|start|send|make|submit) (a batch|batches|a batch job|a file of requests|many requests from a file)",
        "(Can|Does) (Capstan|it|the server) (run|handle|process) (batches|a batch|a file of requests|batch jobs|batch files)",
    ),
    command(
        "capstan chat opens a chat in the terminal.",
        "capstan chat",
        "chat in the terminal|chat on the command line|chat without a server|talk to a model in the terminal|chat in a shell|open a chat|start a chat",
        "(Is there|Does Capstan have) (a chat|a chat program|a terminal chat|a chat in the terminal)",
    ),
    command(
        "capstan run -p PROMPT answers one prompt in the terminal.",
        "capstan run",
        "answer one prompt|answer a single prompt|ask one question in the terminal|run one prompt|get one answer in the shell|send a single prompt",
    ),
    command(
        "capstan doctor describes this machine and what Capstan uses of it.",
        "capstan doctor",
        "see what this machine can do|check my machine|check the machine|describe the machine|find problems|see which instruction sets are used|check my computer|diagnose problems|test my machine",
        "(What|Which) (instruction sets|part of my machine) does Capstan use",
    ),
    (
        "No compiler is needed: the npm packages are prebuilt for Linux.",
        "(Do I|Must I|Does one|Do we) (need|have to have|install) (a compiler|g++|gcc|make|build tools|a C++ compiler|a toolchain|cmake)",
        "(Does|Will) (Capstan|it|the package|npm install|the installation) (need|use|compile|require|run) (a compiler|anything|g++|C++ code|the addon|build tools)",
        "(Is|Are) (a compiler|g++|build tools|a C++ compiler) (needed|required|necessary)",
        "(Are there|Does Capstan have|Do you have|Has Capstan|Is there) (prebuilt packages|prebuilt binaries|a prebuilt package|binaries|ready-made packages|a package without a compiler)",
        "(Do I|Must I|Do we) (have to|need to) (compile|build) (Capstan|it|the addon|anything|the code|something)",
        "(Can I|How do I|May I) (install|use) (Capstan|it) without (a compiler|compiling|building|g++|build tools)",
        "(What about|Tell me about|Explain) (prebuilt packages|the prebuilt packages|compiling|the packages)",
        "(Prebuilt packages|Compiler|Is it prebuilt|Is Capstan prebuilt|Are the packages prebuilt)",
    ),
    (
        "Capstan needs Node.js 20.19 or newer.",
        "(Which|What) (Node.js version|version of Node|Node version|version of Node.js|Node.js versions|Node versions|Node|Node.js) (do I need|does Capstan need|is needed|is required|does it need|are supported|must I have|should I install|works)",
        "(Does|Will|Can) (Capstan|it) (work with|run on|support|need|use) (Node 18|Node 20|Node 22|Node 24|Node.js 20|Node.js 22|Node.js|Node 16|an old Node|Node 21|Node 23|Node.js 24)",
        "(Is|Are) (Node 18|Node 20|Node 22|Node 24|Node.js 22|Node.js 20|Node 16|my Node version) (enough|supported|too old|new enough|OK)",
        "(Do I need|Must I have|Is there need for) (Node|Node.js|a new Node|a new Node.js)",
        "(What is|Tell me|What's) the (minimum Node version|oldest Node version|Node.js version|required Node version|oldest Node.js)",
        "(How old|How new) (may|must|can) (Node|Node.js|my Node) be",
        "(Node version|Node.js version|Node versions|Which Node|What Node)",
    ),
    (
        "Capstan runs on Linux, on x64 and arm64.",
        "(Which|What) (operating system|operating systems|platforms|platform|OS|system|systems) (does Capstan support|does Capstan need|does it run on|are supported|do I need|is supported|can I use|does Capstan run on)",
        "(Does|Will|Can) (Capstan|it) (run on|work on|support|use) (Windows|macOS|a Mac|Linux|Ubuntu|Debian|arm64|ARM|x64|my Mac|Windows 11|Raspberry Pi|Apple silicon|a phone|Android)",
        "Is there (a Windows version|a Mac version|a version for Windows|a version for macOS|a Linux version|a package for Windows|a package for macOS)",
        "(Can I|How do I) (run|use|install) Capstan on (Windows|macOS|a Mac|Linux|Ubuntu|Debian|ARM|arm64|my Mac)",
        "(Windows|macOS|Mac|Linux|arm64|ARM)(| support| with Capstan)",
        "(Is|Are) (Windows|macOS|Linux|arm64|Macs) supported",
    ),
    (
        "Capstan reads and writes text only.",
        "(Does|Can|Will) (Capstan|it|the server) (read|see|understand|support|handle|make|use|take|generate|draw) (images|pictures|audio|video|photos|speech|images or audio|sound|an image)",
        "(Can I|How do I|May I) (send|use|give it|upload) (images|an image|a picture|audio|a photo|pictures|video)(| to Capstan| in a request)",
        "(Are|Is) (images|vision|audio|pictures|image input|video|speech) (supported|possible|available)(| in Capstan)",
        "(Is Capstan|Is it) (multimodal|only for text|text only)",
    ),
    (
        "No, Capstan needs no Docker.",
        "(Does|Will) (Capstan|it|the server|the service) (need|use|require|depend on) (Docker|containers|Kubernetes|a container|Podman)",
        "(Do I|Must I|Do we) (need|have|install) (Docker|Kubernetes|a container runtime|Podman|containers)",
        "Is (Docker|Kubernetes|a container|Podman) (needed|required|necessary|used)(| for Capstan)",
        "(Can I|How do I) (run|use) (Capstan|it) without (Docker|Kubernetes|containers)",
    ),
    feature(
        "The output can follow a JSON schema, a regular expression, a choice or a grammar.",
        "structured output|JSON mode|JSON schemas|a JSON schema|grammars|response_format|guided decoding|constrained decoding|regular expressions|a grammar|JSON output",
        "How (do I|can I|to) (get JSON|force JSON|get valid JSON|make the answer JSON|constrain the output|get structured output|get JSON answers)",
        "(Can|Does) (Capstan|it|the server|the API) (return|force|guarantee|give) (JSON|valid JSON|structured output|JSON answers)",
    ),
    feature(
        "Speculative decoding guesses tokens and checks them: the output stays the same.",
        "speculative decoding|draft models|a draft model|MTP heads|prompt look-up|speculation|--speculative-config|multi-token prediction",
    ),
    feature(
        "--prefix-cache-dir keeps the prefix cache on disk, so that it survives restarts.",
        "a prefix cache on disk|the prefix cache on disk|--prefix-cache-dir|a disk cache|a cache that survives restarts|caching on disk",
        "How (do I|can I|to) (keep|save|store) the (prefix cache|KV cache|cache)(| on disk| over a restart| after a restart)",
        "(Does|Can|Will) the (prefix cache|cache|KV cache) (survive|last over|outlive) (a restart|restarts)",
    ),
    (
        "On the CPU, the same request gives the same bits, whatever else runs.",
        "(Is|Are) (Capstan|the output|it|the results|the answers|the answer|Capstan's output) (deterministic|reproducible|always the same|the same every time|repeatable)",
        "(What about|Tell me about|Explain|What is) (determinism|reproducibility|deterministic output)(| in Capstan)",
        "(Does|Will) (the same request|the same prompt|a request) (give|get|return|produce) (the same answer|the same output|the same bits|equal results|the same result)",
        "(Does|Will) (batching|the batch|other traffic|load) change (the output|the answer|the results|my answer)",
        "(Determinism|Deterministic|Reproducible results|Same bits)",
    ),
    command(
        "capstan keys create --name NAME makes an access key.",
        "capstan keys create",
        "create an access key|make an access key|create a key|make a key|create an API key|get an API key|add a key|make an API key|protect a server|protect the server",
        "(What is|What does|Tell me about) (capstan keys|the keys command)",
    ),
    command(
        "capstan deploy NAME makes a deployment of the running service.",
        "capstan deploy",
        "make a deployment|create a deployment|deploy something|add a deployment|create a new deployment|deploy my model",
    ),
    feature(
        "GET /metrics gives metrics for Prometheus.",
        "metrics|Prometheus|monitoring|/metrics|Prometheus metrics|Grafana|dashboards",
        "How (do I|can I|to) (monitor|watch|monitor the server|get metrics|see metrics|watch the server|monitor Capstan)",
        "(Which|What) route (has|gives|returns|is for) (the |)metrics",
    ),
    feature(
        "Import capstan/ai-sdk or capstan/langchain, and give them an engine.",
        "the AI SDK|LangChain|the Vercel AI SDK|LangChain.js|AI SDK and LangChain|capstan/ai-sdk|capstan/langchain|LangGraph",
        "(Does|Will|Can) (LangChain|the AI SDK|LangGraph) (work with|use|run) (Capstan|it)",
    ),
    (
        "docs/explanation/comparison.md compares Capstan with vLLM, llama.cpp, Ollama and LiteLLM.",
        "(How|Where) (does Capstan|does it|is Capstan) (compare|compared|differ|different)(| with| from| to) (vLLM|llama.cpp|Ollama|LiteLLM|other programs|others)",
        "(What is|What's) the difference between Capstan and (vLLM|llama.cpp|Ollama|LiteLLM)",
        "(Is Capstan|Is it) (better|faster|slower|worse|smaller) than (vLLM|llama.cpp|Ollama|LiteLLM)",
        "(Why|When) (should I|would I|do I) (use|take|choose) Capstan (and not|instead of|over|rather than) (vLLM|llama.cpp|Ollama|LiteLLM)",
        "(Compare|Explain) Capstan (with|and|to) (vLLM|llama.cpp|Ollama|LiteLLM)",
        "Capstan (or|vs|versus) (vLLM|llama.cpp|Ollama|LiteLLM)",
    ),
    (
        "The documentation is in docs: begin with docs/getting-started.md.",
        "(Where|How) (is|are|do I find|can I find|can I read|do I get) (the documentation|the docs|the manual|help|a tutorial|the guides|documentation|a guide|more information)(| of Capstan| for Capstan| about Capstan)",
        "(Is there|Does Capstan have|Do you have) (documentation|a manual|a tutorial|docs|a guide|any documentation)",
        "(Documentation|Docs|Manual|Tutorial|Where can I read more|Where can I learn more|How do I learn Capstan|How do I learn more about Capstan)",
    ),
    (
        "Run npm ci and npm test.",
        "How (do I|can I|to|does one) (run the tests|test Capstan|start the tests|test the code|run the test suite)",
        "(Which|What) command (runs|starts) the (tests|test suite)",
        "(Where are|How do I start|Can I run) the tests",
    ),
    (
        "Set the context length with --max-model-len, for example --max-model-len 8K.",
        "How (do I|can I|to) (set|change|limit|choose|raise|lower) the (context length|context|context window|maximum length)(| of the model| of a model| of the server)",
        "(Which|What) (option|flag) (sets|changes|limits|is for) the (context length|context|context window|maximum length)",
        "(What is|What does|Explain) --max-model-len(| do)",
    ),
]
