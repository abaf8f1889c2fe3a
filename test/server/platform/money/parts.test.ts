/** Amounts, the fields of bodies, prices and CSV. */
import {
  costOf,
  formatAmount,
  formatPrice,
  MAX_AMOUNT,
  parseAmount,
  parsePrice,
} from '../../../../server/platform/money/amounts';
import { ApiError } from '../../../../server/base/errors';
import { kindOfPath, OutputLimit } from '../../../../server/platform/money/output-limit';
import { endMsOf, sinceDayOf, startMsOf } from '../../../../server/platform/money/periods';
import { PriceList } from '../../../../server/platform/money/price-list';
import { FieldScanner, findFields } from '../../../../server/platform/gateway/json-fields';
import { spendCsv } from '../../../../server/platform/money/spend-csv';

describe('amounts', () => {
  test.each([
    ['0', 0n],
    ['12.5', 12_500_000_000n],
    ['0.000000001', 1n],
    ['1000000000', MAX_AMOUNT],
  ])('%s', (text, nanos) => {
    expect(parseAmount(text)).toBe(nanos);
    expect(formatAmount(nanos)).toBe(text);
  });

  test.each([
    '',
    '-1',
    '+1',
    '1e3',
    '1.',
    '.5',
    '1,5',
    '0.0000000001',
    '1000000000.1',
    '99999999999',
    'NaN',
    ' 1',
    '１',
  ])('refuses %j', (text) => {
    expect(parseAmount(text)).toBeUndefined();
  });

  test('prices have six decimals', () => {
    expect(parsePrice('0.000001')).toBe(1n);
    expect(parsePrice('0.0000001')).toBeUndefined();
    expect(formatPrice(150_000n)).toBe('0.15');
    expect(formatAmount(-1_500_000_000n)).toBe('-1.5');
  });

  test('a cost is rounded up once', () => {
    const price = { input: parsePrice('0.15')!, cachedInput: parsePrice('0.075')!, output: parsePrice('0.6')! };
    expect(costOf(price, { promptTokens: 1_000, cachedTokens: 400, completionTokens: 10 })).toBe(126_000n);
    expect(
      costOf({ input: 1n, cachedInput: 0n, output: 0n }, { promptTokens: 1, cachedTokens: 0, completionTokens: 0 }),
    ).toBe(1n);
    // A replica cannot report more cached tokens than the prompt has.
    expect(costOf(price, { promptTokens: 1, cachedTokens: 9, completionTokens: 0 })).toBe(75n);
  });

  test('a million small costs add up exactly', () => {
    const price = { input: parsePrice('0.1')!, cachedInput: 0n, output: parsePrice('0.3')! };
    let sum = 0n;
    for (let i = 0; i < 1_000_000; i++) sum += costOf(price, { promptTokens: 1, cachedTokens: 0, completionTokens: 1 });
    expect(formatAmount(sum)).toBe('0.4');
  });
});

describe('the fields of a body', () => {
  const search = {
    names: new Set(['max_tokens', 'n']),
    notAnObject: () => new ApiError('invalid_json', 'expected an object'),
  };
  const fieldsOf = (text: string, pieceBytes: number) => {
    const scanner = new FieldScanner(search);
    const bytes = Buffer.from(text);
    for (let at = 0; at < bytes.length; at += pieceBytes) scanner.take(bytes.subarray(at, at + pieceBytes));
    scanner.end();
    return scanner.fields.map(({ name, start, end, text: kept }) => {
      expect(kept).toEqual(bytes.subarray(start, end));
      return [name, kept!.toString()];
    });
  };

  test('are found at the top level alone, also with escapes, in any case and twice', () => {
    const inner = '"messages":[{"max_tokens":1,"content":"\\"max_tokens\\":2 \\\\"}]';
    for (const pieceBytes of [Infinity, 1, 2, 3, 7, 64])
      expect(
        fieldsOf(`\ufeff {${inner}, "max\\u005ftokens" : 3 ,"MAX_TOKENS":[4,{"n":5}],"n":null}`, pieceBytes),
      ).toEqual([
        ['max_tokens', '3'],
        ['max_tokens', '[4,{"n":5}]'],
        ['n', 'null'],
      ]);
    expect(fieldsOf('{"max_toKen\u017f":7,"max_token\\u017f":8,"other":1}', 3)).toEqual([
      ['max_tokens', '7'],
      ['max_tokens', '8'],
    ]);
    expect(fieldsOf('{}', Infinity)).toEqual([]);
  });

  test.each(['', '[]', '1', '{', '{"a"}', '{"a":}', '{"a":1,}', '{"a":1}x', '{"a":"x}', '{a:1}', '{"a":[1', '{"a" 1}'])(
    'refuses %j',
    (text) => {
      for (const pieceBytes of [Infinity, 1, 2]) expect(() => fieldsOf(text, pieceBytes)).toThrow('expected an object');
    },
  );

  test('a body of 1 MiB with hostile strings takes little time', async () => {
    const text = Buffer.from(`{"a":"${'\\"'.repeat(500_000)}","max_tokens":1}`);
    const startedMs = performance.now();
    expect((await findFields(text, search)).fields).toHaveLength(1);
    expect(performance.now() - startedMs).toBeLessThan(1_000);
  });

  test('other work gets turns while a long body is read', async () => {
    const numMiB = 8;
    let numTurns = 0;
    let isRead = false;
    const other = (): void => {
      numTurns++;
      if (!isRead) setImmediate(other);
    };
    setImmediate(other);
    await findFields(Buffer.from(`{"a":"${'x'.repeat(numMiB * 2 ** 20)}"}`), search);
    isRead = true;
    expect(numTurns).toBeGreaterThanOrEqual(numMiB - 1);
  });
});

describe('the output of a request', () => {
  const limitOf = (path: string, body: object | string) =>
    OutputLimit.read(path, Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)));

  test.each<[string, object, number, number | undefined]>([
    ['/v1/chat/completions', { max_tokens: 5 }, 1, 5],
    ['/v1/chat/completions', { max_tokens: 5, max_completion_tokens: 9, n: 3 }, 3, 9],
    ['/v1/chat/completions', { n: null, n_predict: 7 }, 1, undefined],
    ['/v1/chat/completions', { max_tokens: -1 }, 1, undefined],
    ['/v1/completions', { prompt: [1, 2, 3] }, 1, 16],
    ['/v1/completions', { prompt: [[1], [2]], n: 2, best_of: 4, max_tokens: 1e3 }, 8, 1_000],
    ['/v1/responses', { max_output_tokens: 5, n: 9 }, 9, 5],
    ['/v1/embeddings', { input: ['a', 'b'], max_tokens: 4 }, 0, 0],
  ])('%s %j', async (path, body, numOutputs, maxTokens) => {
    expect(await limitOf(path, body)).toMatchObject({ numOutputs, maxTokens });
  });

  test.each<[string, object | string, string]>([
    ['two models', '{"model":"a","model":"b"}', 'model: expected one field'],
    ['models in two cases', { model: 'expensive', MODEL: 'cheap' }, 'model: expected one field'],
    ['a model in capitals', { MODEL: 'cheap' }, 'model: expected one field'],
    ['choices without end', '{"n":1.7e308,"prompt":["a","b"],"max_tokens":1}', 'n: expected at most'],
    ['a long number', `{"max_tokens":1${'0'.repeat(100)}}`, 'max_tokens: expected an integer'],
    ['a field a thousand times', `{${'"n":2,'.repeat(1_001)}"x":1}`, 'n: expected one field'],
    ['a list as a number', `{"n":[${'{},'.repeat(1_000)}{}]}`, 'n: expected an integer'],
  ])('refuses %s', async (_what, body, message) => {
    await expect(limitOf('/v1/completions', body)).rejects.toThrow(message);
  });

  test('a model in capitals is none of the fields that ignore the case', async () => {
    expect(await limitOf('/v1/chat/completions', { model: 'a', MAX_TOKENS: 5, max_tokens: 3 })).toMatchObject({
      model: 'a',
      maxTokens: 5,
    });
  });

  test('names that Go reads as others count too', async () => {
    expect(await limitOf('/v1/completions', '{"max_token\u017f":9,"be\u017ft_of":4}')).toMatchObject({
      maxTokens: 9,
      numOutputs: 4,
    });
  });

  test('short keys leave turns to other work', async () => {
    let numTurns = 0;
    let timer = setImmediate(function count() {
      numTurns++;
      timer = setImmediate(count);
    });
    const body = `{${'"":1,'.repeat(2 ** 18)}"n":1}`;
    await limitOf('/v1/completions', body);
    clearImmediate(timer);
    expect(numTurns).toBeGreaterThan(15);
  });

  test('many prompts take little time', async () => {
    const numPrompts = 5_000_000;
    const before = process.cpuUsage();
    const numOutputs = async (body: string) => (await limitOf('/v1/completions', body)).numOutputs;
    expect(await numOutputs(`{"prompt":[${'{},'.repeat(numPrompts - 1)}{}]}`)).toBe(numPrompts);
    expect(await numOutputs(`{"prompt":[${'7,'.repeat(numPrompts - 1)}7]}`)).toBe(1);
    expect(process.cpuUsage(before).user).toBeLessThan(2_000_000);
  });

  test('a limit of 0 is refused where a server may read it as none', async () => {
    const body = Buffer.from('{"max_tokens":0}');
    const limit = await limitOf('/v1/chat/completions', body.toString());
    expect(limit.maxTokens).toBe(0);
    expect(() => limit.withLimit(body, 10)).toThrow('max_tokens: with a budget, expected at least 1');
  });

  test('every field that limits it is lowered, also in a body with another model', async () => {
    const text = '{"n_predict":900,"model":"a","Max_Tokens":-1,"max_tokens":3,"num_predict":null}';
    const limit = await limitOf('/v1/chat/completions', text);
    for (const model of ['"a"', '"longer"', '""'])
      expect(limit.withLimit(Buffer.from(text.replace('"a"', model)), 10).toString()).toBe(
        `{"n_predict":10,"model":${model},"Max_Tokens":10,"max_tokens":3,"num_predict":10}`,
      );
    const empty = Buffer.from('{}');
    expect((await limitOf('/v1/responses', '{}')).withLimit(empty, 10).toString()).toBe('{"max_output_tokens":10}');
  });

  test('paths are billed, free or unknown', () => {
    expect(
      (
        [
          ['POST', '/v1/chat/completions'],
          ['GET', '/v1/chat/completions'],
          ['POST', '/tokenize'],
          ['POST', '/v1/responses/input_tokens'],
          ['GET', '/v1/models'],
          ['POST', '/v1/batches'],
          ['POST', '/completion'],
        ] as const
      ).map(([method, path]) => kindOfPath(method, path)),
    ).toEqual(['billed', 'free', 'free', 'free', 'free', 'unknown', 'unknown']);
  });
});

test('the most specific price counts', () => {
  const price = (model: string) => ({
    id: `prc_${model}`,
    model,
    input: 1n,
    cachedInput: 1n,
    output: 1n,
    maxOutputTokens: 1,
    updatedAt: 0,
    rev: 1,
  });
  const list = new PriceList(['*', 'chat', 'chat/big', 'dep_2'].map(price));
  const find = (deploymentId: string, name: string, inner?: string) => {
    const found = list.find({ deploymentId, name }, inner);
    return [found?.price.model, found?.model];
  };
  expect(find('dep_1', 'chat')).toEqual(['chat', 'chat']);
  expect(find('dep_1', 'chat', 'big')).toEqual(['chat/big', 'chat/big']);
  // The name of a client that has no price is not stored.
  expect(find('dep_1', 'chat', 'nonsense')).toEqual(['chat', 'chat']);
  expect(find('dep_2', 'chat')).toEqual(['dep_2', 'chat']);
  expect(find('dep_3', 'other', 'big')).toEqual(['*', 'other']);
  expect(new PriceList([]).find({ deploymentId: 'dep_1', name: 'chat' }, undefined)).toBeUndefined();
});

test('periods are those of UTC', () => {
  const ms = Date.parse('2030-02-14T23:59:59Z');
  expect((['day', 'month', 'total'] as const).map((period) => startMsOf(sinceDayOf(period, ms)))).toEqual([
    Date.parse('2030-02-14T00:00:00Z'),
    Date.parse('2030-02-01T00:00:00Z'),
    0,
  ]);
  expect((['day', 'month', 'total'] as const).map((period) => endMsOf(period, ms))).toEqual([
    Date.parse('2030-02-15T00:00:00Z'),
    Date.parse('2030-03-01T00:00:00Z'),
    null,
  ]);
});

test('CSV has no formulas', () => {
  const entry = (model: string, key: string) => ({
    day: 20_000,
    owner: { type: 'user' as const, id: 'usr_1', name: 'a@b.example' },
    key: { id: 'key_1', name: key },
    model,
    requests: 1,
    promptTokens: 2,
    cachedTokens: 0,
    completionTokens: 3,
    cost: 1_500_000_000n,
    estimated: 0n,
  });
  const text = spendCsv('USD', [
    entry('=HYPERLINK("x")', '+1'),
    entry('-1', '@cmd'),
    entry('\t=1', 'a,b'),
    entry('a"b', 'two\r\nlines'),
    entry('a;=1+1;b', '\uff1d1'),
  ]);
  const rows = text.split('\r\n2024-').map((row) => row.replace(/^10-04,user,usr_1,a@b\.example,key_1,/, ''));
  expect(rows.slice(1)).toEqual([
    `'+1,"'=HYPERLINK(""x"")",1,2,0,3,1.5,0,USD`,
    `'@cmd,'-1,1,2,0,3,1.5,0,USD`,
    `"a,b",'\t=1,1,2,0,3,1.5,0,USD`,
    '"two\r\nlines","a""b",1,2,0,3,1.5,0,USD',
    "'\uff1d1,a;'=1+1;b,1,2,0,3,1.5,0,USD\r\n",
  ]);
});
