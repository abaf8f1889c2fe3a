// Shared code of the scripts for JavaScript clients. checks.py is the Python version.
import assert from 'node:assert/strict';

const { CAPSTAN_URL, CAPSTAN_EMBEDDER_URL, CAPSTAN_KEY, CAPSTAN_UNKNOWN_KEY, CAPSTAN_FOREIGN_KEY, CAPSTAN_SPENT_KEY } =
  process.env;
export const baseURL = `${CAPSTAN_URL}/v1`;
/** A server with an embedding model, without keys. */
export const embedderURL = `${CAPSTAN_EMBEDDER_URL}/v1`;
export const keys = {
  good: CAPSTAN_KEY,
  unknown: CAPSTAN_UNKNOWN_KEY,
  foreign: CAPSTAN_FOREIGN_KEY,
  spent: CAPSTAN_SPENT_KEY,
};
export const weatherParameters = {
  type: 'object',
  properties: { city: { type: 'string', description: 'City name' } },
  required: ['city'],
  additionalProperties: false,
};

export async function run(client, checks) {
  for (const [check, body] of Object.entries(checks)) {
    let note = '';
    try {
      await body();
    } catch (error) {
      note = `${error?.name}: ${error?.message}`.slice(0, 300);
      if (process.env.CAPSTAN_TRACE) console.error(error);
      process.exitCode = 1;
    }
    console.log(JSON.stringify({ client, check, ok: note === '', note }));
  }
}

/** Checks that the promise rejects with an error that has all these properties. */
export async function rejects(promise, properties) {
  await assert.rejects(promise, (error) => {
    for (const [name, wanted] of Object.entries(properties))
      assert.deepEqual(error[name], wanted, `${name}: ${error.message}`);
    return true;
  });
}
