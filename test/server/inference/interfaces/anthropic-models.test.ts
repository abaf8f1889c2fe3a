import { anthropicModelPage } from '../../../../server/inference/anthropic/models';

const models = ['a', 'b', 'c', 'd', 'e'].map((id) => ({ id, created: 1_700_000_000 }));
const pageOf = (query: string) => {
  const page = anthropicModelPage(models, query) as { data: { id: string }[] };
  return { ...page, data: page.data.map(({ id }) => id).join('') };
};

test.each([
  ['', 'abcde', false],
  ['limit=2', 'ab', true],
  ['limit=5', 'abcde', false],
  ['limit=2&after_id=b', 'cd', true],
  ['limit=2&after_id=c', 'de', false],
  ['after_id=e', '', false],
  ['limit=2&before_id=d', 'bc', true],
  ['limit=2&before_id=c', 'ab', false],
  ['before_id=a', '', false],
])('the page of %j', (query, data, hasMore) => {
  expect(pageOf(query)).toEqual({
    data,
    has_more: hasMore,
    first_id: data.at(0) ?? null,
    last_id: data.at(-1) ?? null,
  });
});

test.each(['limit=0', 'limit=1001', 'limit=1.5', 'limit=', 'after_id=x', 'before_id=', 'after_id=a&before_id=b'])(
  '%s is refused',
  (query) => {
    expect(() => pageOf(query)).toThrow(/expected/);
  },
);

test('a model has the fields of the interface', () => {
  expect(anthropicModelPage([{ id: 'a', created: 1_700_000_000, max_model_len: 512 }], '')).toMatchObject({
    data: [
      { type: 'model', id: 'a', display_name: 'a', created_at: '2023-11-14T22:13:20.000Z', max_input_tokens: 512 },
    ],
  });
});
