/** How the text of a byte-level BPE tokenizer is split before the merges. */
export interface PreTokenizer {
  /** Values of `tokenizer.ggml.pre`. */
  names: readonly string[];
  /** Applied in order; each match becomes a separate piece. */
  patterns: readonly string[];
  /** A piece that is a token is not split further. */
  ignoresMerges?: boolean;
  /** The text starts with BOS unless the file says otherwise. */
  addsBos?: boolean;
  /** The text is brought into Unicode normal form C. */
  normalizes?: boolean;
}

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const SPACES = String.raw`\s+(?!\S)|\s+`;
const GPT2 = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|${SPACES}`;
const DIGIT = String.raw`\p{N}`;
const UP_TO_THREE_DIGITS = String.raw`\p{N}{1,3}`;
/** Words and symbols of the tokenizers after GPT-4; `digits` is what becomes one number. */
const words = (digits: string) =>
  String.raw`${CONTRACTIONS}|[^\r\n\p{L}\p{N}]?\p{L}+|${digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|${SPACES}`;
/** Words that begin a new piece at a capital letter (o200k); `suffix` follows the letters. */
const casedWords = (digits: string, suffix: string) => {
  const upper = String.raw`\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}`;
  const lower = String.raw`\p{Ll}\p{Lm}\p{Lo}\p{M}`;
  const start = String.raw`[^\r\n\p{L}\p{N}]?`;
  const rest = String.raw`${digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|${SPACES}`;
  return `${start}[${upper}]*[${lower}]+${suffix}|${start}[${upper}]+[${lower}]*${suffix}|${rest}`;
};
const LATIN_GREEK_CYRILLIC =
  'A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373' +
  '\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F' +
  '\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77' +
  '\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D' +
  '\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB' +
  '\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128' +
  '\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4' +
  '\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF' +
  '\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\u{10400}-\u{1044F}\u{104B0}-\u{104D3}' +
  '\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}';
const CHINESE_AND_KOREAN = '[一-龥ࠀ-一가-퟿]+';
const DEEPSEEK_V3 = [
  UP_TO_THREE_DIGITS,
  '[一-龥぀-ゟ゠-ヿ]+',
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|' +
    ' ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
];

/**
 * The patterns are those of the models' tokenizer.json, which the converter of llama.cpp recognizes by its name
 * (src/llama-vocab.cpp and convert_hf_to_gguf_update.py in ggml-org/llama.cpp).
 */
const PRE_TOKENIZERS: readonly PreTokenizer[] = [
  {
    names: ['default'],
    patterns: [String.raw`[\p{P}\$\+<=>\^~\|]+`, GPT2, String.raw`\p{N}+`, '[0-9][0-9][0-9]'],
  },
  {
    names: ['llama-bpe', 'llama3', 'llama-v3', 'falcon3', 'falcon-h1', 'pixtral', 'midm-2.0', 'lfm2'],
    patterns: [words(UP_TO_THREE_DIGITS)],
    ignoresMerges: true,
    addsBos: true,
  },
  { names: ['dbrx', 'smaug-bpe', 'chatglm-bpe'], patterns: [words(UP_TO_THREE_DIGITS)] },
  { names: ['glm4'], patterns: [words(UP_TO_THREE_DIGITS)], ignoresMerges: true },
  { names: ['qwen2'], patterns: [words(DIGIT)], normalizes: true },
  {
    names: ['deepseek-r1-qwen', 'stablelm2', 'hunyuan', 'megrez', 'grok-2', 'solar-open', 'kormo'],
    patterns: [words(DIGIT)],
  },
  {
    names: ['qwen35'],
    patterns: [
      String.raw`${CONTRACTIONS}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|${SPACES}`,
    ],
  },
  {
    names: [
      ...['gpt-2', 'phi-2', 'mpt', 'olmo', 'jais', 'gigachat', 'a.x-4.0', 'mellum', 'exaone4', 'trillion'],
      ...['granite-docling', 'modern-bert', 'roberta-bpe', 'jina-es', 'jina-de', 'jina-v2-es', 'jina-v2-de'],
    ],
    patterns: [GPT2],
  },
  {
    names: ['smollm', 'starcoder', 'refact', 'command-r', 'codeshell', 'exaone', 'minerva-7b', 'mellum2'],
    patterns: [DIGIT, GPT2],
  },
  { names: ['falcon'], patterns: [String.raw`[\p{P}\$\+<=>\^~\|` + '`]+', GPT2, '[0-9][0-9][0-9]'] },
  {
    names: ['deepseek-llm'],
    patterns: [
      '[\r\n]',
      String.raw`\s?[${LATIN_GREEK_CYRILLIC}]+`,
      String.raw`\s?[!-/:-~！-／：-～‘-‟　-。]+`,
      String.raw`\s+$`,
      CHINESE_AND_KOREAN,
      String.raw`\p{N}+`,
    ],
  },
  {
    names: ['deepseek-coder'],
    patterns: ['[\r\n]', String.raw`\s?\p{L}+`, String.raw`\s?\p{P}+`, CHINESE_AND_KOREAN, DIGIT],
  },
  { names: ['deepseek-v3', 'hunyuan-dense', 'joyai-llm'], patterns: DEEPSEEK_V3 },
  {
    names: ['gpt-4o', 'llama4', 'kanana2', 'minimax-m2'],
    patterns: [casedWords(UP_TO_THREE_DIGITS, `${CONTRACTIONS}?`)],
  },
  { names: ['tekken'], patterns: [casedWords(DIGIT, '')], ignoresMerges: true, addsBos: true },
  {
    names: ['seed-coder'],
    patterns: [String.raw`${CONTRACTIONS}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|${SPACES}`],
  },
  {
    names: ['bailingmoe', 'bailingmoe2', 'llada-moe'],
    patterns: [
      String.raw`'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|${SPACES}`,
    ],
  },
  { names: ['minicpm5'], patterns: [UP_TO_THREE_DIGITS, words(String.raw`\p{N}+`)], ignoresMerges: true },
  { names: ['bloom', 'poro-chat', 'gpt3-finnish'], patterns: [String.raw` ?[^(\s|.,!?…。，、।۔،)]+`] },
  { names: ['viking'], patterns: [String.raw` ?[^(\s|.,!?…。，、।۔،)]+`, DIGIT] },
];

/** Returns undefined for an unknown name. */
export function findPreTokenizer(name: string): PreTokenizer | undefined {
  return PRE_TOKENIZERS.find(({ names }) => names.includes(name));
}

/** All names, sorted. */
export const PRE_TOKENIZER_NAMES: readonly string[] = PRE_TOKENIZERS.flatMap(({ names }) => names).sort();
