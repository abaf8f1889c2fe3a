"""Chinese: what the model knows by heart, and requests that it declines. Rows and grammar as in facts.py.

A space between Chinese and Latin letters is left out half of the time, as people do."""

import re

import words as w
from exchange import pair

BEYOND = "这超出了我的能力：我是 Capstan 的小型演示模型。"

GREETINGS = [
    (
        "你好！有什么可以帮你？",
        "(你好|您好|嗨|哈喽|大家好|你好啊|你好呀|早上好|下午好|晚上好|早|早安|hi，你好|hello，你好|你好，朋友|你好，Capstan|嘿|喂|中午好|上午好|您好您好|你好你好)",
        "(你好|您好|嗨)，(我是新来的|我有个问题|可以聊聊吗|我想聊天|打扰一下|我回来了|请问有空吗)",
        "(打个招呼|说声你好|跟我打个招呼|问个好|说你好)",
    ),
    (
        "我很好，谢谢。有什么可以帮你？",
        "(|你好，|嗨，)(你好吗|最近怎么样|你怎么样|过得好吗|今天怎么样|你还好吗|近来可好|一切都好吗|今天过得怎么样|你最近好吗)",
    ),
    ("我在。有什么可以帮你？", "(|你好，|喂，)(在吗|你在吗|有人吗|在不在|你在不在|听得到吗|你能听到吗|你在线吗)"),
    (
        "不客气！",
        "(谢谢|感谢|多谢)(你|您|)(，|)(帮了我|帮了大忙|真有用|很有用|这很有帮助|我懂了|辛苦了|太好了)(|！)",
        "(谢谢|多谢|非常感谢|谢谢你|感谢|太感谢了|谢了|十分感谢|好的，谢谢|谢谢您|很好，谢谢|谢谢你的帮助|感谢你的帮助|谢谢，很有帮助|明白了，谢谢|谢谢回答)",
    ),
    ("再见！", "(再见|拜拜|回头见|明天见|下次见|回见|我走了|我要走了|先走了|再会|好的，再见|谢谢，再见|下次再聊)(|，朋友)", "(那就|那|好的，|那么)(再见|拜拜|回头见|下次见|先这样)(|了|吧|啦)"),
    ("晚安！", "(晚安|晚安，朋友|祝你晚安|我要睡了，晚安|睡个好觉)"),
    ("没关系！", "(对不起|抱歉|不好意思|是我的错|我错了|打扰了|非常抱歉|真对不起)"),
    ("还有什么可以帮你？", "(好的|很好|明白了|不错|太好了|好|知道了|对|没错|懂了|可以|棒|真棒|好极了|行|了解)(|，很好|啊)"),
    ("很高兴认识你！", "(|你好，)(很高兴认识你|认识你很高兴|幸会|很高兴见到你)"),
]

ITSELF = [
    (
        "我是 Capstan 的小型演示模型。",
        "(|请问|你好，|请问一下，)(你是谁|你叫什么|你叫什么名字|你是什么|你是什么模型|你是哪个模型|你的名字是什么|您是谁|您叫什么名字|你是什么东西|我在和谁说话|这是什么模型|怎么称呼你|我该怎么称呼你|你是什么 AI)",
        "(请|)(介绍一下你自己|自我介绍一下|做个自我介绍|说说你自己|介绍一下自己|自我介绍)",
        "你是(机器人|人工智能|AI|语言模型|一个模型|Capstan|演示模型|机器|聊天机器人)吗",
        "你有名字吗",
        "(|能|可以|请)(告诉我|说说|说一下)(你是谁|你叫什么|你的名字|你是什么模型)(|吗)",
        "你(到底|究竟|其实|)(是谁|是什么模型|是什么|叫什么)(|呢)",
    ),
    (
        "不，我是 Capstan 的小型演示模型。",
        "(|请问)你是(ChatGPT|GPT-4|Claude|Gemini|人|真人|人类|通义千问|DeepSeek|豆包|文心一言|活的|大模型|Qwen|Llama|GPT|Kimi)(吗|么)",
        "你(是不是|不是|该不会是)(ChatGPT|真人|人类|Claude|GPT|DeepSeek|机器猫|大模型|通义千问)(|吧|吗)",
        "(我在和|我是在跟)(ChatGPT|真人|人类|人|Claude)(说话|聊天)吗",
    ),
    (
        "我可以回答关于 Capstan 的问题、做小加减法、数数、复述、提取 JSON、记住事实和调用工具。",
        "(|请问|你好，)(你能做什么|你会什么|你可以做什么|你能帮我做什么|你有什么功能|你会做什么|你有什么用|你能干什么|你能干嘛|你可以帮我什么|你有哪些技能|我可以问你什么|你擅长什么|怎么使用你|你懂什么|我能问什么)",
        "你(都|)(能|会|可以)(帮我|给我|)(做|干|回答)(些|)(什么|哪些事|什么事|哪些)(|呢)",
        "(说说|说一下|讲讲|列出|告诉我)你(会|能)(做的|做什么|的技能|的)(|事)",
        "(帮助|帮帮我|你能帮我吗|我需要帮助|你有什么本事|能帮我吗)",
    ),
    (
        "我大约有五百万个参数。",
        "你(一共|总共|大概|到底|)有(多少|几个|几百万|多少万|多少个)参数",
        "(|请问)(你有多少参数|你有多大|你的参数有多少|模型有多大|这个模型有多少参数|你的规模有多大|参数量是多少|你的参数量是多少|你有几个参数)",
    ),
    (
        "Capstan 项目用生成的文本训练了我。",
        "(是|)(谁|哪个公司|哪个团队|什么人|哪家公司)(训练|开发|制作|创造|做)(了|的|出了)你",
        "(|请问)(谁训练了你|谁开发了你|谁创造了你|谁做的你|你是谁开发的|你是谁训练的|你是怎么训练的|你的训练数据是什么|你从哪里来|谁制作了你|你是谁做的|你的作者是谁|你是怎么来的)",
    ),
    (
        "我很小，在少数技能之外经常出错。",
        "(|请问)(你有什么局限|你会出错吗|你可靠吗|我能相信你吗|你总是对的吗|你有什么缺点|你的局限是什么|你会犯错吗|你准确吗|你聪明吗)",
    ),
    (
        "我会简单的英语和一点中文。",
        "你(懂不懂|会不会|能不能说|会|懂|听得懂|看得懂)(中文|英语|汉语|英文|法语|日语|外语)(吗|)",
        "(|请问|你好，)(你会说中文吗|你会中文吗|你懂中文吗|你会说英语吗|你会什么语言|你会哪些语言|你支持什么语言|你能说中文吗|可以说中文吗|会法语吗|你会日语吗|你能用中文回答吗|你懂英语吗|可以用中文吗|支持中文吗)",
    ),
    (
        "我的上下文是 2,048 个词元。",
        "(|请问)(你的上下文有多长|上下文长度是多少|你的上下文窗口多大|上下文有多大|你能记住多少文字|你的上下文是多少|你能读多长的文本)",
    ),
]

CAPSTAN = [
    (
        "Capstan 是语言模型的 Node.js 原生运行时和服务器。",
        "(|请问|你好，|请问一下，)(Capstan 是什么|什么是 Capstan|Capstan 是什么东西|Capstan 是干什么的|Capstan 是做什么的|Capstan 有什么用|Capstan 是什么软件|Capstan 是个什么项目|capstan 是什么|这个项目是什么|这是什么软件|Capstan 能做什么|Capstan 是啥|Capstan 是什么意思)",
        "(请|)(介绍一下 Capstan|介绍 Capstan|解释一下 Capstan|说说 Capstan|讲讲 Capstan|告诉我 Capstan 是什么|用一句话介绍 Capstan|简单介绍一下 Capstan|描述一下 Capstan)",
        "你(知道|了解) Capstan 吗",
    ),
    (
        "运行 npx capstan serve MODEL；内置模型用 npm start。",
        "(|请问)(怎么启动服务器|如何启动服务器|怎么启动 Capstan|如何运行 Capstan|怎么运行 Capstan|怎么用 Capstan|如何使用 Capstan|怎么开始|如何启动 Capstan|怎么运行模型|如何运行一个模型|怎么启动|怎样启动服务器|用什么命令启动服务器|启动服务器的命令是什么|如何部署一个模型服务器|怎么起服务)",
    ),
    (
        "服务器默认监听 8080 端口。",
        "(|请问)(默认端口是多少|Capstan 用哪个端口|服务器的端口是什么|服务器监听哪个端口|端口是多少|默认端口是什么|Capstan 的端口是多少|用的是哪个端口|Capstan 监听哪个端口)",
    ),
    (
        "Capstan 在 CPU 上运行。它的 CUDA 后端还没有在 GPU 上运行过。",
        "(|请问)(Capstan 需要 GPU 吗|需要显卡吗|Capstan 支持 GPU 吗|支持 CUDA 吗|Capstan 支持 CUDA 吗|可以在 GPU 上运行吗|可以用显卡吗|没有 GPU 能用吗|Capstan 在什么硬件上运行|支持 NVIDIA 显卡吗|需要 GPU 吗|支持哪些硬件|能在 CPU 上运行吗|没有显卡可以吗|Capstan 能在 CPU 上跑吗)",
    ),
    (
        "是的，Capstan 是开源的，采用 MIT 许可证。",
        "(|请问)(Capstan 开源吗|Capstan 是开源的吗|是开源的吗|开源吗|Capstan 免费吗|这个项目开源吗|Capstan 是什么许可证|用的什么许可证|许可证是什么|可以商用吗|Capstan 可以商用吗|Capstan 要钱吗|要付费吗|Capstan 的许可证是什么|能看源代码吗|是免费的吗|采用什么协议|Capstan 是开源软件吗|代码公开吗)",
    ),
    (
        "运行 npm install capstan，或在克隆的仓库里运行 npm ci。",
        "(|请问)(怎么安装 Capstan|如何安装 Capstan|怎么安装|如何安装|怎样安装 Capstan|安装命令是什么|在哪里下载 Capstan|怎么下载 Capstan|Capstan 怎么装|如何获取 Capstan)",
    ),
    (
        "Capstan 支持 Llama、Mistral、Qwen、Gemma、Phi 等模型，格式为 GGUF 或 safetensors。",
        "(|请问)(Capstan 支持哪些模型|支持哪些模型|可以运行什么模型|支持 Qwen 吗|支持 Llama 吗|Capstan 支持什么模型|能运行 Qwen 吗|可以加载哪些模型|支持什么格式|Capstan 支持什么模型格式|能跑通义千问吗|可以用我自己的模型吗|支持 Gemma 吗|支持 Mistral 吗)",
    ),
    (
        "是的，Capstan 的接口与 OpenAI 兼容：POST /v1/chat/completions。",
        "(|请问)(兼容 OpenAI 吗|Capstan 兼容 OpenAI 吗|支持 OpenAI 接口吗|可以用 OpenAI 客户端吗|是 OpenAI 兼容的吗|怎么调用 API|如何调用接口|API 怎么用|接口地址是什么|怎么发送聊天请求|可以用 openai 库吗)",
    ),
    (
        "用 --quantization int8 或 int4，权重占 8 位或 4 位。",
        "(|请问)(支持量化吗|Capstan 支持量化吗|怎么量化模型|如何量化|怎么量化|支持 int4 吗|支持 int8 吗|如何使用量化|量化怎么用|可以量化权重吗|有量化功能吗|量化)",
    ),
    (
        "Capstan 能运行 GGUF 文件：npx capstan serve FILE.gguf。",
        "(|请问)(支持 GGUF 吗|Capstan 支持 GGUF 吗|怎么运行 GGUF 文件|能加载 GGUF 吗|如何使用 GGUF|GGUF 可以用吗|支持 GGUF 文件吗|GGUF 文件怎么用|可以运行 GGUF 模型吗)",
    ),
    (
        "capstan pull ORG/NAME 从 hub 下载模型。",
        "(|请问)(怎么下载模型|如何下载模型|capstan pull 是什么|capstan pull 做什么|怎么从 Hugging Face 下载模型|用什么命令下载模型|在哪里下载模型|如何获取模型|能自动下载模型吗|capstan pull 有什么用)",
    ),
    (
        "嵌入用 POST /v1/embeddings，重排用 POST /v1/rerank。",
        "(|请问)(支持嵌入吗|支持向量吗|Capstan 支持嵌入模型吗|支持 embedding 吗|支持重排吗|支持 rerank 吗|怎么计算向量|怎么做嵌入|如何重排文档|怎么获取向量|支持重排序吗|支持嵌入和重排吗|如何使用嵌入)",
    ),
    (
        "Capstan 在 CPU 上运行 LoRA 适配器：--lora-modules NAME=FOLDER。",
        "(|请问)(支持 LoRA 吗|Capstan 支持 LoRA 吗|怎么加载 LoRA|如何使用 LoRA|LoRA 怎么用|支持 LoRA 适配器吗|可以用 LoRA 吗|支持适配器吗)",
    ),
    (
        "运行 npx capstan serve A B：模型在需要时加载。",
        "(|请问)(可以同时运行多个模型吗|怎么运行多个模型|支持多个模型吗|一个服务器能有几个模型|如何加载多个模型|能同时服务多个模型吗|可以加载两个模型吗|Capstan 支持多模型吗|怎么服务多个模型)",
    ),
    (
        "capstan up 启动控制台和网关，用来管理多个部署。",
        "(|请问)(capstan up 是什么|capstan up 做什么|怎么打开控制台|如何启动控制台|怎么管理部署|控制台怎么用|如何启动网关|capstan up 有什么用|怎么运行多个部署)",
    ),
    (
        "capstan chat 在终端里打开聊天。",
        "(|请问)(capstan chat 是什么|capstan chat 做什么|怎么在终端聊天|如何在终端里聊天|可以在命令行聊天吗|怎么在命令行里聊天|capstan chat 有什么用)",
    ),
    (
        "capstan doctor 说明这台机器，以及 Capstan 用到它的什么。",
        "(|请问)(capstan doctor 是什么|capstan doctor 做什么|怎么检查我的机器|如何检查机器|怎么诊断问题|capstan doctor 有什么用|如何查看我的机器能做什么)",
    ),
    (
        "Capstan 需要 Node.js 20.19 或更新的版本。",
        "(|请问)(需要什么版本的 Node|需要哪个 Node 版本|Capstan 需要什么 Node 版本|支持 Node 22 吗|Node 18 可以吗|Node.js 要什么版本|支持哪些 Node 版本|最低 Node 版本是多少|需要 Node.js 吗|Node 版本要求是什么)",
    ),
    (
        "Capstan 在 Linux 上运行，支持 x64 和 arm64。",
        "(|请问)(支持 Windows 吗|支持 Mac 吗|支持 Linux 吗|Capstan 支持什么系统|支持哪些操作系统|可以在 Windows 上运行吗|能在 Mac 上用吗|支持 macOS 吗|Capstan 支持 Windows 吗|支持 arm64 吗)",
    ),
    (
        "不需要编译器：npm 包是预先编译好的。",
        "(|请问)(需要编译吗|需要编译器吗|安装需要编译吗|要装 g++ 吗|有预编译的包吗|Capstan 需要编译器吗|需要自己编译吗|有没有预编译包)",
    ),
    (
        "不，Capstan 运行时不需要 Python。",
        "(|请问)(需要 Python 吗|Capstan 需要 Python 吗|要装 Python 吗|用到 Python 吗|没有 Python 可以吗|依赖 Python 吗)",
    ),
    (
        "不，Capstan 不需要 Docker。",
        "(|请问)(需要 Docker 吗|Capstan 需要 Docker 吗|要用容器吗|没有 Docker 可以吗|需要容器吗|依赖 Docker 吗)",
    ),
    (
        "按 Ctrl-C：服务器完成正在处理的请求后退出。",
        "(|请问)(怎么停止服务器|如何停止服务器|怎么关闭服务器|怎么退出|如何关闭 Capstan|怎么停止 Capstan|如何结束服务器)",
    ),
    (
        "Capstan 用 C++ 和 TypeScript 编写。",
        "(|请问)(Capstan 是用什么语言写的|Capstan 用什么语言编写|用什么编程语言写的|是用什么写的|Capstan 是用 Python 写的吗|用什么语言开发的)",
    ),
    (
        "导入 Engine，然后调用 await Engine.load('demo')。",
        "(|请问)(怎么在代码里使用 Capstan|如何在 Node.js 中使用 Capstan|怎么在程序里加载模型|作为库怎么用|怎么在我的程序里使用|怎么在 Node 里加载模型|如何在代码中加载模型)",
    ),
    (
        "文档在 docs 里：从 docs/getting-started.md 开始。",
        "(|请问)(文档在哪里|有文档吗|在哪里看文档|哪里有教程|有教程吗|怎么学习 Capstan|有使用说明吗)",
    ),
]

# Ways to ask for a feature by its name; rows of Capstan above that have such a name, by the first words of their answer.
FORMS = (
    "(|Capstan )(支持|能用|可以用|有|支不支持|能不能用|可不可以用|会不会支持|可以做|能做|是否支持){x}(|功能)(吗|呢|)",
    "(怎么用|如何使用|怎样使用|怎么开启|如何启用|怎么运行|如何加载|怎么加载|怎样加载){x}",
    "{x}(怎么用|是什么|能用吗|可以用吗|怎么开启|支持吗|能运行吗|可以运行吗|怎么样|呢)",
    "(我想用|我要用|我有|我需要|我想加载|我想运行|我有一个|我想要)(|一下){x}(|，可以吗|，怎么做|，能运行吗|，怎么办|，怎么用)",
    "(介绍一下|说说|讲讲|解释一下|关于)(| Capstan 的){x}",
    "(可以|能|Capstan 可以|Capstan 能)(用|运行|加载|做|跑)(我的|)(| ){x}吗",
)
NAMES = {
    "用 --quantization": "量化|权重量化| int8 | int4 |四位量化|八位量化|int8 量化|int4 量化|量化权重",
    "Capstan 能运行 GGUF": " GGUF | GGUF 文件| GGUF 模型|GGUF 格式| Q4_K_M 文件",
    "嵌入用": "嵌入|嵌入模型|向量| embedding |重排|重排模型| rerank |嵌入和重排|向量检索|重排序",
    "Capstan 在 CPU 上运行 LoRA": " LoRA | LoRA 适配器|适配器|微调的 LoRA |多个 LoRA ",
    "运行 npx capstan serve A B": "多个模型|两个模型|几个模型|多模型|很多模型|三个模型",
    "capstan up": "控制台|网关|多个部署| capstan up |网页控制台|部署管理",
    "capstan chat": "终端聊天|命令行聊天| capstan chat ",
    "capstan doctor": " capstan doctor |机器检查|诊断",
    "capstan pull": " capstan pull |模型下载|下载模型",
    "Capstan 在 CPU 上运行。": " GPU |显卡| CUDA |英伟达显卡| NVIDIA GPU |图形卡",
    "是的，Capstan 的接口": " OpenAI 接口| OpenAI 客户端| OpenAI API | openai 库|OpenAI 的客户端",
    "Capstan 支持 Llama": " Qwen | Llama | Gemma | Mistral |千问|通义千问模型| Phi ",
    "Capstan 在 Linux": " Windows | Linux | macOS | arm64 | Mac ",
}
MORE = {
    "Capstan 在 CPU 上运行。": "(|我的电脑|我|这台机器)没有(显卡|GPU| GPU )(，可以用吗|，能用 Capstan 吗|，怎么办|，能运行吗|行吗)",
    "运行 npx capstan serve MODEL": "(我想|我要|怎么|如何)(启动|运行|打开|开)(服务器|Capstan |服务|一个服务器)(，怎么做|，用什么命令|，该怎么办|)",
    "capstan pull": "(我想|我要|怎么|如何|能)(下载|获取|拉取)(一个|)(模型|Qwen 模型|新模型)(|，怎么做|吗)",
    "运行 npx capstan serve A B": "(一个服务器|一个进程|同时|Capstan )(可以|能|能不能|可不可以)(跑|运行|加载|服务)(多个|两个|几个|很多)模型(吗|)",
    "是的，Capstan 是开源": "(Capstan |这个项目|它|代码)(的代码|的源码|)(是|是不是)(开源|免费|公开)(的|)(吗|)|(Capstan |它)(用的是|采用|是)(什么|哪种|哪个)(许可证|协议|授权)",
    "Capstan 需要 Node.js": "(我|)(要|该|应该|需要)(装|安装|用)(什么|哪个|多新的)(版本的 |)Node(.js|)(| 版本)|Node(.js|) (16|18|20|22|24) (可以吗|够吗|行吗|支持吗)",
    "不需要编译器": "安装(时|的时候|Capstan |)(要|需要|会)(编译|编译器|用到编译器|g++)吗",
    "服务器默认": "(服务器|Capstan |它)(用的|的|使用的|默认)(端口|端口号)是(多少|什么|哪个|几)",
    "运行 npm install": "(我想|我要|怎么|如何|怎样|在哪里)(安装|装|下载)(一下|) Capstan",
    "Capstan 支持 Llama": "(Capstan |它|这个)(能|可以|支持)(跑|运行|加载|用)(哪些|什么|哪几种)模型",
    "Capstan 是语言模型": "(Capstan |这个软件|这个项目)(到底|究竟|)(是什么|是干嘛的|是做什么用的|能干什么)(|呢)|(能|可以|请)(给我|跟我|)(介绍一下|讲讲|说说) Capstan(| 吗)",
    "capstan up": "(我想|怎么|如何)(打开|启动|使用)(控制台|网关|网页控制台)",
}


def row_with(row):
    """The row with the phrasings of NAMES and MORE for its answer."""
    for name, names in NAMES.items():
        row = (*row, *(form.replace("{x}", f"({names})") for form in FORMS)) if row[0].startswith(name) else row
    return (*row, *(f"({more})" for name, more in MORE.items() if row[0].startswith(name) for _ in range(3)))


CAPSTAN = [row_with(row) for row in CAPSTAN]
TABLES = (GREETINGS, ITSELF, CAPSTAN, CAPSTAN)
# What people put before and behind a question.
LEADS = "你好，|请问一下，|我想知道，|请告诉我，|麻烦问一下，|那么，|想问一下，|能告诉我|能不能告诉我|可以告诉我|另外，|还有，|对了，|顺便问一下，".split("|")
TAILS = "呢|呀|啊|？谢谢|，谢谢|，朋友|，Capstan".split("|")

TOPICS = """大海|爱情|秋天|猫|狗|月亮|太空|历史|量子力学|黑洞|光合作用|重力|进化论|气候变化|股票|通货膨胀|政治|足球|篮球|音乐|爵士乐|莫扎特|莎士比亚|拿破仑|爱因斯坦|哲学|宗教|医学|疫苗|烹饪|象棋|
机器学习|神经网络|区块链|互联网|编程|恐龙|火山|鲸鱼|树木|机器人|龙|海盗|冬天|春天|友谊|时间旅行|幸福|税收|汽车|飞机|火车|面包|咖啡|茶|火星|太阳|蜜蜂|经济|艺术|长城|孔子|李白|红楼梦|三国演义|熊猫|春节|
Python|Linux|Docker|Java|微信|Windows|数学|物理|化学|电影|手机|健康|旅游""".replace("\n", "").split("|")
COUNTRIES = "中国|法国|德国|日本|美国|英国|意大利|西班牙|俄罗斯|印度|巴西|埃及|韩国|泰国|加拿大|澳大利亚|瑞士|希腊|越南|墨西哥".split("|")
CITIES = "北京|上海|广州|深圳|杭州|成都|西安|南京|武汉|香港|台北|东京|巴黎|伦敦|纽约|柏林|罗马|莫斯科|首尔|新加坡".split("|")
WORDS = "苹果|香蕉|房子|河流|红色|蓝色|桌子|椅子|书|朋友|老师|学生|天空|雨|雪|花|鸟|鱼|马|牛|山|水|火|风|船|桥|门|灯|钟|杯子|牛奶|米饭|面条|跑步|唱歌|快乐|高兴|安静|明天|昨天|今天|世界|你好世界|早上好|蓝色的鲸鱼|红苹果|小猫".split("|")

BEYOND_ASKS = (
    "(|请|请你|帮我|你能|能不能|可以)(写一首|写一篇|写一个|给我写|创作一首)(诗|歌|故事|文章|小说|作文|笑话|短诗|散文)(|，关于{t}|，主题是{t})",
    "(|请|帮我)(写一首|写一篇|写一个)关于{t}的(诗|歌|故事|文章|作文|笑话|小说)",
    "(|请|你能|给我)(讲个|说个|讲一个)(笑话|故事|童话|谜语|关于{t}的故事|关于{t}的笑话)",
    "(|请|请你)(解释|解释一下|介绍|介绍一下|说说|讲讲|谈谈|分析一下|总结一下){t}",
    "(|请问)({t}是什么|什么是{t}|{t}是谁|{t}有什么用|为什么有{t}|怎么学{t}|你怎么看{t}|{t}的历史是什么|{t}好吗|{t}是什么意思|{t}开源吗|{t}怎么安装|{t}的原理是什么)",
    "(|请问|告诉我){c}的(首都|人口|总统|国旗|货币|最大的城市|历史|面积|首都在哪里|首都是哪里|国花)(是什么|是哪里|是多少|)",
    "(|请问)({p}|今天|明天|今天{p}|明天{p}|现在{p}|)(天气怎么样|的天气怎么样|会下雨吗|会下雪吗|气温多少|有多少度|的天气如何|热不热)",
    "(|请问)(现在几点|今天几号|今天星期几|现在是几点钟|今天是什么日子|几点了|今年是哪一年)",
    "(|请|帮我)(把|)(翻译{w}|{w}翻译成英文|{w}翻译成法语|“{w}”翻译成英语|{w}用英语怎么说|{w}用日语怎么说|{w}的英文是什么)",
    "(|请|帮我)(用 Python|用 Java|用 C++|用 JavaScript|用 Go)(写一个|写个)(函数|程序|脚本|排序算法|爬虫|网页|游戏)",
    "(|请|帮我)(写代码|改一下代码|修复这个错误|看看我的代码|写个程序|写一段代码|调试代码)",
    "(|请|给我|能不能)(推荐|推荐一下|推荐一本|推荐一部)(书|电影|餐厅|音乐|菜谱|{p}的餐厅|关于{t}的书|小说|酒店)",
    "(怎么做|如何做|怎么修|怎么种|如何制作|怎么画)(蛋糕|面条|汽车|自行车|饺子|番茄|网站|{w})",
    "(为什么)(天空是蓝色的|海水是咸的|会下雨|人会做梦|天会黑|{t}很重要|树叶会变黄|猫怕水)",
    "(|请问)(世界上最高的山是什么|最长的河是哪条|光速是多少|人生的意义是什么|地球有多大|月亮有多远|谁发明了{t}|谁写了{t}|太阳有多热|{p}有多少人|{c}有多少人|一年有多少天)",
    "(我该|我应该|今天|晚上)(吃什么|穿什么|看什么|买什么|做什么|去哪里)",
    "(画|帮我画|请画)(一只猫|一幅画|一张图|一只{w}|{w}|一座山)",
    "(播放|放|唱)(一首歌|音乐|{t}的歌|歌)",
    "(|请|帮我)(计划|安排|预订)(去{p}的旅行|我的一天|机票|酒店|我的假期)",
    "(你喜欢|你相信|你听说过|你爱|你讨厌|你知道){t}吗",
    "{t}和{t}(有什么区别|哪个好|有什么不同|哪个更好)",
    "(我|我今天)(很难过|很开心|心情不好|生病了|头疼|失眠|很累)(，怎么办|，我该怎么办|)",
    "(今天有什么新闻|最近有什么新闻|股票怎么样|谁赢了比赛|昨天的比赛结果是什么|{c}的新闻)",
    "(北京到上海有多远|{p}到{p}有多远|{p}在哪里|{p}有什么好玩的|{p}有什么好吃的|怎么去{p})",
    "(怎么用|如何使用|怎么安装|怎么打开|我想用|介绍一下)(微信|支付宝|Excel|Photoshop|Word|手机|淘宝| Docker| Kubernetes|浏览器|打印机|洗衣机)",
    "(|请问)Capstan (支持|有|能用)(区块链|蓝牙|打印|微信|象棋|天气预报|音乐|电影|邮件|地图|股票|视频通话|购物|游戏)(吗|功能吗)",
)


def spaced(rng, text):
    """As people type it: with or without spaces around Latin words, with marks of either kind."""
    if rng.random() < 0.5:
        text = re.sub(r"(?<=[一-鿿，]) (?=[\w-])|(?<=[\w+]) (?=[一-鿿])", "", text)
    if rng.random() < 0.1:
        text = text.lower()
    return text


def asked(rng, text, greets=False):
    if rng.random() < 0.15 and not greets:
        text = rng.choice(LEADS) + text
    if rng.random() < 0.1:
        text += rng.choice(TAILS)
    return spaced(rng, re.sub(" +", " ", text).strip())


def by_heart(rng):
    table = rng.choice(TABLES)
    answer, *phrasings = rng.choice(table)
    text = asked(rng, w.expand(rng.choice(phrasings), rng), greets=table is GREETINGS)
    exchange = pair("chinese", text + rng.choice(["？", "？", "?", "", "", "。", "！"]), answer)
    exchange.by_surface = True
    return exchange


def doing(rng):
    """Counting and repeating, asked in Chinese."""
    if rng.random() < 0.5:
        low, high = rng.choice([0, 1, 1, 1, 1, rng.randint(2, 10)]), rng.randint(11, 30) if rng.random() < 0.4 else rng.randint(3, 20)
        low = min(low, high - 1)
        forms = f"(|请|请你)(从 {low} 数到 {high}|从{low}数到{high}|从 {low} 数到 {high} 吧|数数，从{low}到{high}|列出从{low}到{high}的数字)"
        return pair("chinese", w.expand(forms, rng) + rng.choice(["", "。", "！"]), ", ".join(map(str, range(low, high + 1))))
    text = "".join(rng.sample(WORDS, rng.choice([1, 1, 2]))) if rng.random() < 0.8 else w.word(rng)
    form = rng.choice(["(|请)(重复|重复一遍|跟我说|复述|说|重复这句话|请说)：{x}", "(|请)(重复|说|复述)“{x}”"])
    return pair("chinese", w.expand(form, rng).replace("{x}", text), text)


def chinese(rng):
    return doing(rng) if rng.random() < 0.08 else by_heart(rng)


def beyond(rng):
    text = w.expand(rng.choice(BEYOND_ASKS), rng)
    for slot, values in (("{t}", TOPICS), ("{c}", COUNTRIES), ("{p}", CITIES), ("{w}", WORDS)):
        text = re.sub(slot, lambda _: rng.choice(values), text)
    return pair("chinese-beyond", asked(rng, text) + rng.choice(["？", "?", "", "。", "。"]), BEYOND)
