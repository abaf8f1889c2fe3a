import { startupText } from '../../../server/inference/startup-text';
import type { EngineInfo } from '../../../ts';

const INFO = {
  version: '1.2.3',
  task: 'generate',
  architecture: 'Qwen2ForCausalLM',
  numParameters: 5.1e6,
  weightDtype: 'bf16',
  quantization: 'none',
  backend: 'cpu',
  isa: 'avx2',
  threads: 2,
  tensorParallelSize: 1,
  maxModelLen: 2_048,
  kvCacheBytes: 2 ** 20,
  numBlocks: 8,
  blockSize: 16,
  samplingDefaults: {},
} as EngineInfo;
const ADDRESS = { host: '0.0.0.0', port: 80, transport: 'node', model: 'demo' };

test('names the model and a request to try', () => {
  const text = startupText(INFO, ADDRESS);
  expect(text).toContain('Capstan 1.2.3 serves demo (Qwen2ForCausalLM, 5.1 M parameters, bf16)');
  expect(startupText({ ...INFO, quantization: 'int4' }, ADDRESS)).toContain('5.1 M parameters, bf16 as int4)');
  expect(text).toMatch(/\nTry:\n {2}curl http:\/\/127\.0\.0\.1:80\/v1\/chat\/completions .*\n$/);
});

test('names what an embedding model and a reranker do', () => {
  const embed = startupText({ ...INFO, task: 'embed', embeddingSize: 384, promptNames: ['query'] }, ADDRESS);
  expect(embed).toContain('\nTask: embed (/v1/embeddings, /v1/rerank and /v1/score), 384 values, prompts query\n');
  expect(embed).toContain(`/v1/embeddings -H 'Content-Type: application/json' -d '{"model":"demo","input":`);
  expect(embed).not.toContain('Sampling');
  const score = startupText({ ...INFO, task: 'score' }, ADDRESS);
  expect(score).toContain('\nTask: score (/v1/rerank and /v1/score)\n');
  expect(score).toMatch(/\/v1\/rerank .*"documents":\[/);
});

test('a replica names no request, because clients cannot reach it', () => {
  const text = startupText(INFO, { ...ADDRESS, isReplica: true });
  expect(text).toContain('serves demo');
  expect(text).not.toMatch(/Try|curl/);
  expect(text).toMatch(/\n$/);
});
