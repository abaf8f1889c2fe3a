import { withFlagNames } from '../../../server/cli/engine-option-flags';
import { CapstanError } from '../../../ts';

test.each([
  ['maxModelLen: expected at most 2048, got 4096', '--max-model-len: expected at most 2048, got 4096'],
  ['device: expected cpu or cuda as a device, got "gpu"', '--device: expected cpu or cuda as a device, got "gpu"'],
  ['prompt: expected at least one token', 'prompt: expected at least one token'],
  ['raise kvCacheBytes or lower maxModelLen', 'raise --kv-cache-memory or lower --max-model-len'],
  ['grammarCacheBytes: expected a number', '--grammar-cache-memory: expected a number'],
  ['generationConfigOverrides.topP: expected a number', '--override-generation-config.topP: expected a number'],
  [
    'toolCallFormat, reasoningFormat, prefixCache, chatTemplate',
    '--tool-call-parser, --reasoning-parser, --enable-prefix-caching, --chat-template',
  ],
  [
    'config.json: GemmaForCausalLM has no flag, hidden_size and numThings neither',
    'config.json: GemmaForCausalLM has no flag, hidden_size and numThings neither',
  ],
])('replaces options with flags: %s', (message, expected) => {
  expect(withFlagNames(new CapstanError('invalid_argument', message, { param: 'x' }))).toMatchObject({
    name: 'CapstanError',
    code: 'invalid_argument',
    message: expected,
    param: 'x',
  });
});

test('returns other errors unchanged', () => {
  const error = new Error('maxModelLen');
  expect(withFlagNames(error)).toBe(error);
});
