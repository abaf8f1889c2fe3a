/** Schemas of real clients: nearly all are accepted, and every text of their grammars validates. */
import { checkCorpus, CORPUS } from '../oracle/schemas/check';

/** Schemas that are refused, with the reason. */
const REFUSED = {
  'npm:eslint max-params': 'not: this keyword is not supported',
  'npm:eslint no-restricted-syntax': 'uniqueItems: supported for items of enum or const',
  'npm:eslint object-curly-newline': 'a value might match both alternatives',
  // `nullable` has no effect without `type` in OpenAPI 3.0, so that the recursion never ends.
  'npm:zod mutualPost openapi-3.0': 'no text matches',
  'npm:@notionhq/notion-mcp-server API-post-page input': 'a value might match both alternatives',
  'pypi:pydantic set': 'uniqueItems: supported for items of enum or const',
  'pypi:pydantic frozenset': 'uniqueItems: supported for items of enum or const',
};

test('accepts at least 99 % of the schemas, and writes only valid texts', async () => {
  const { numSchemas, refused, invalid, unchecked } = await checkCorpus(2);
  expect(CORPUS.length).toBeGreaterThanOrEqual(20);
  expect(numSchemas).toBeGreaterThanOrEqual(300);
  expect(invalid).toEqual([]);
  // Draft-04, which ajv does not know.
  expect(unchecked).toEqual(['positive', 'neg', 'gtlt'].map((kind) => `npm:zod ${kind} openapi-3.0`));
  expect(Object.keys(refused)).toEqual(Object.keys(REFUSED));
  for (const [name, reason] of Object.entries(REFUSED)) expect(refused[name]).toContain(reason);
  expect(Object.keys(refused).length / numSchemas).toBeLessThanOrEqual(0.01);
});
