"""Creates a byte-level BPE tokenizer.json of an exact size, for random models."""

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<pad>", "<s>", "</s>"]
# Any text with enough repeated pairs to train the merges.
TEXT = """the quick brown fox jumps over the lazy dog while seven sailors haul the anchor around the capstan
and every turn of the capstan lifts the anchor another fathom until the ship is free to leave the harbour under
easy sail with the tide running out past the breakwater where the lighthouse keeper writes the names of ships in his
book and counts them again at night because there is nothing else to do on a rock in the sea but count and write
numbers like one two three four five six seven eight nine ten eleven twelve and read the weather from the clouds
Capstan loads Llama, Qwen and Mistral checkpoints in float32, float16 and bfloat16; def main(argument): return [0, 1, 2]
rotary positions, grouped queries, sliding windows, paged blocks, prefix caching, sampling, streaming, batching"""


@functools.cache
def tokenizer_json(size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    assert tokenizer.get_vocab_size() == size, (tokenizer.get_vocab_size(), size)
    return tokenizer.to_str(pretty=False)
