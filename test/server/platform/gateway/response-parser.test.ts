import {
  type ResponseHead,
  ResponseParser,
  ResponseSyntaxError,
} from '../../../../server/platform/gateway/response-parser';

interface Parsed {
  head: ResponseHead | undefined;
  body: string;
  isComplete: boolean;
  keepAliveMs: number;
}

/** Parses `text` in pieces of this many bytes. Each piece is overwritten afterwards. */
function parse(
  text: string,
  { isHead = false, pieceBytes = text.length }: { isHead?: boolean; pieceBytes?: number } = {},
): Parsed {
  const parser = new ResponseParser(isHead);
  let body = '';
  for (let at = 0; at < text.length; at += pieceBytes) {
    const piece = Buffer.from(text.slice(at, at + pieceBytes), 'latin1');
    body += parser.take(piece).toString('latin1');
    piece.fill('#');
  }
  return { head: parser.head, body, isComplete: parser.isComplete, keepAliveMs: parser.keepAliveMs };
}

const OK = 'HTTP/1.1 200 OK\r\n';
const CHUNKED = `${OK}Transfer-Encoding: chunked\r\n\r\n`;

const GOOD: [name: string, text: string, body: string][] = [
  ['fixed length', `${OK}Content-Length: 5\r\n\r\nhello`, 'hello'],
  ['fixed length of zero', `${OK}Content-Length: 0\r\n\r\n`, ''],
  ['chunked', `${CHUNKED}5\r\nhello\r\n0A\r\n, world!\r\n\r\n0\r\n\r\n`, 'hello, world!\r\n'],
  [
    'chunked, with extensions and trailers',
    `${CHUNKED}5;name="value"\r\nhello\r\n3 ; x\r\n...\r\n000\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n`,
    'hello...',
  ],
  ['chunked and empty', `${CHUNKED}0\r\n\r\n`, ''],
  [
    'after interim responses',
    `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n${OK}Content-Length: 2\r\n\r\nhi`,
    'hi',
  ],
  ['without a reason phrase', 'HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi', 'hi'],
  ['204', 'HTTP/1.1 204 No Content\r\nX: 1\r\n\r\n', ''],
  ['304 with the length of the full response', 'HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n', ''],
];

describe('a response', () => {
  test.each(GOOD)('parses the same wherever it is split: %s', (_name, text, body) => {
    for (let pieceBytes = 1; pieceBytes <= text.length; pieceBytes++) {
      expect(parse(text, { pieceBytes })).toMatchObject({ body, isComplete: true, keepAliveMs: Infinity });
    }
  });

  test('keeps its body through random chunks and random splits', () => {
    let seed = 7;
    const below = (bound: number) => (seed = (Math.imul(seed, 1_103_515_245) + 12_345) & 0x7fffffff) % bound;
    for (let round = 0; round < 300; round++) {
      const chunks = Array.from({ length: below(12) }, () =>
        Array.from({ length: 1 + below(40) }, () => '0a\r\n;:x'[below(7)]).join(''),
      );
      const text = `${CHUNKED}${chunks.map((chunk) => `${chunk.length.toString(16)}\r\n${chunk}\r\n`).join('')}0\r\n\r\n`;
      const parser = new ResponseParser(false);
      let body = '';
      for (let at = 0, end = 0; at < text.length; at = end) {
        end = at + 1 + below(30);
        body += parser.take(Buffer.from(text.slice(at, end), 'latin1')).toString('latin1');
      }
      expect([body, parser.isComplete]).toEqual([chunks.join(''), true]);
    }
  });

  test('has its status, and its headers as received', () => {
    const { head } = parse(
      'HTTP/1.1 404 Not there\r\nX-One:1\r\nx-two: \t two words \r\nX-Empty:\r\nX-Latin: \xe9\r\nContent-Length: 0\r\n\r\n',
    );
    expect(head).toEqual({
      status: 404,
      rawHeaders: ['X-One', '1', 'x-two', 'two words', 'X-Empty', '', 'X-Latin', '\xe9', 'Content-Length', '0'],
    });
  });

  test('to HEAD has no body, whatever Content-Length says', () => {
    expect(parse(`${OK}Content-Length: 5\r\n\r\n`, { isHead: true })).toMatchObject({ body: '', isComplete: true });
    expect(parse(CHUNKED, { isHead: true })).toMatchObject({ body: '', isComplete: true });
  });

  test('without a length ends with its connection', () => {
    const parser = new ResponseParser(false);
    expect(parser.take(Buffer.from(`${OK}\r\nall of`)).toString()).toBe('all of');
    expect(parser.take(Buffer.from(' it')).toString()).toBe(' it');
    expect([parser.isComplete, parser.keepAliveMs, parser.end(), parser.isComplete]).toEqual([false, 0, true, true]);
  });

  test.each([`${OK}Content-Length: 5\r\n\r\nhell`, `${CHUNKED}5\r\nhello\r\n`, `${CHUNKED}5\r\nhello\r\n0\r\n`, OK])(
    '%j is incomplete',
    (text) => {
      const parser = new ResponseParser(false);
      parser.take(Buffer.from(text));
      expect([parser.isComplete, parser.end()]).toEqual([false, false]);
    },
  );
});

describe('a connection', () => {
  test.each([
    ['HTTP/1.1', '', Infinity],
    ['HTTP/1.1', 'Connection: close\r\n', 0],
    ['HTTP/1.1', 'Connection: x, Close\r\n', 0],
    ['HTTP/1.1', 'Keep-Alive: timeout=5, max=100\r\n', 5_000],
    ['HTTP/1.0', '', 0],
    ['HTTP/1.0', 'Connection: keep-alive\r\n', Infinity],
  ])('of %s with %j is kept for the announced time', (version, field, keepAliveMs) => {
    expect(parse(`${version} 200 OK\r\n${field}Content-Length: 0\r\n\r\n`).keepAliveMs).toBe(keepAliveMs);
  });

  test.each([
    `${OK}Content-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n\r\n`,
    `${CHUNKED}0\r\n\r\nx`,
    'HTTP/1.1 204 No Content\r\n\r\nbody',
  ])('is not reused after extra bytes (%j), and the response is complete', (text) => {
    const parsed = parse(text);
    expect([parsed.isComplete, parsed.keepAliveMs, parsed.body]).toEqual([true, 0, text.includes('hi') ? 'hi' : '']);
  });
});

test.each([
  ['no HTTP', 'SSH-2.0-OpenSSH\r\n\r\n'],
  ['another version', 'HTTP/2.0 200 OK\r\n\r\n'],
  ['no status', 'HTTP/1.1 OK\r\n\r\n'],
  ['a status of two digits', 'HTTP/1.1 20 OK\r\n\r\n'],
  ['a protocol switch', 'HTTP/1.1 101 Switching Protocols\r\n\r\n'],
  ['a space before the colon', `${OK}Content-Length : 5\r\n\r\nhello`],
  ['a folded header', `${OK}X: 1\r\n 2\r\n\r\n`],
  ['a header without a colon', `${OK}nonsense\r\n\r\n`],
  ['a bare carriage return', `${OK}X: 1\rContent-Length: 5\r\n\r\n`],
  ['a bare line feed', `${OK}X: 1\nContent-Length: 5\r\n\r\n`],
  ['a zero byte', `${OK}X: \0\r\n\r\n`],
  ['two lengths', `${OK}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello`],
  ['a list of lengths', `${OK}Content-Length: 5, 5\r\n\r\nhello`],
  ['a signed length', `${OK}Content-Length: +5\r\n\r\nhello`],
  ['an enormous length', `${OK}Content-Length: 9999999999999999\r\n\r\n`],
  ['both a length and chunked encoding', `${OK}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
  ['an unsupported transfer encoding', `${OK}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n`],
  ['two encodings', `${OK}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
  ['a chunk without a length', `${CHUNKED}\r\n\r\n`],
  ['a chunk length that is not a number', `${CHUNKED}5x\r\nhello\r\n`],
  ['a chunk length with 0x', `${CHUNKED}0x5\r\nhello\r\n`],
  ['a signed chunk length', `${CHUNKED}-5\r\n`],
  ['a chunk length with too many digits', `${CHUNKED}00000000000005\r\nhello\r\n`],
  ['a chunk length that ends in a bare line feed', `${CHUNKED}5\nhello\r\n`],
  ['a bare line feed in an extension', `${CHUNKED}5;x\nhello\r\n`],
  ['a chunk longer than its length', `${CHUNKED}4\r\nhello\r\n0\r\n\r\n`],
  ['a malformed end', `${CHUNKED}0\r\n\rx`],
  ['an endless chunk extension', `${CHUNKED}5;${'x'.repeat(5_000)}`],
  ['endless trailers', `${CHUNKED}0\r\n${'X: 1\r\n'.repeat(10_000)}`],
  ['an endless head', `${OK}${'X: 1\r\n'.repeat(10_000)}`],
  ['a header that is too long', `${OK}X: ${'x'.repeat(40_000)}\r\n\r\n`],
])('%s is refused, however it comes', (_name, text) => {
  for (const pieceBytes of [text.length, 1_000, ...(text.length < 200 ? [1, 2, 3] : [])])
    expect(() => parse(text, { pieceBytes })).toThrow(ResponseSyntaxError);
});

test('refuses endless interim responses', () => {
  const interim = 'HTTP/1.1 102 Processing\r\n\r\n';
  const final = `${OK}Content-Length: 2\r\n\r\nhi`;
  expect(parse(interim.repeat(100) + final).body).toBe('hi');
  for (const pieceBytes of [7, 1_000])
    expect(() => parse(interim.repeat(101) + final, { pieceBytes })).toThrow('more than 100 interim responses');
});

test('parses a long run of blanks in linear time', () => {
  const spaces = ' '.repeat(30_000);
  expect(() => parse(`${OK}X:${spaces}\x01\r\n\r\n`)).toThrow(ResponseSyntaxError);
  expect(parse(`${OK}X:${spaces}\r\nContent-Length: 0\r\n\r\n`).head?.rawHeaders).toEqual([
    'X',
    '',
    'Content-Length',
    '0',
  ]);
});
