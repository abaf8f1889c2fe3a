/** Parses responses strictly. Extra or invalid bytes are findings. */

export interface FuzzResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
  /** Whether the connection closes after it. */
  closes: boolean;
}

/** Returns the complete responses at the start of the bytes, and the rest. Throws an Error for invalid HTTP. */
export function readResponses(
  bytes: Buffer,
  isHead: (index: number) => boolean,
  isClosed: boolean,
): { responses: FuzzResponse[]; rest: Buffer } {
  const responses: FuzzResponse[] = [];
  let rest = bytes;
  for (;;) {
    const found = readOne(rest, isHead(responses.length), isClosed);
    if (found === undefined) return { responses, rest };
    rest = rest.subarray(found.end);
    // 100 Continue precedes the actual response.
    if (found.response.status >= 200) responses.push(found.response);
  }
}

function readOne(
  bytes: Buffer,
  isHead: boolean,
  isClosed: boolean,
): { response: FuzzResponse; end: number } | undefined {
  const headEnd = bytes.indexOf('\r\n\r\n');
  if (headEnd < 0) return undefined;
  const [statusLine, ...lines] = bytes.subarray(0, headEnd).toString('latin1').split('\r\n');
  const status = /^HTTP\/1\.1 (\d{3})( [\x20-\x7e]*)?$/.exec(statusLine)?.[1];
  if (status === undefined) throw new Error(`an invalid status line: ${JSON.stringify(statusLine.slice(0, 100))}`);
  const headers: Record<string, string> = {};
  for (const line of lines) {
    const [, name, value] = /^([!#$%&'*+.^_`|~\w-]+): *([\x20-\x7e]*)$/.exec(line) ?? [];
    if (name === undefined) throw new Error(`an invalid header: ${JSON.stringify(line.slice(0, 100))}`);
    headers[name.toLowerCase()] = value;
  }
  const make = (body: Buffer, end: number) => ({
    response: {
      status: Number(status),
      headers,
      body: body.toString(),
      closes: /close/i.test(headers.connection ?? ''),
    },
    end,
  });
  const start = headEnd + 4;
  if (isHead || Number(status) < 200 || status === '204') return make(Buffer.alloc(0), start);
  if (headers['transfer-encoding'] !== undefined) {
    const body = readChunks(bytes, start);
    return body === undefined ? undefined : make(body.data, body.end);
  }
  if (headers['content-length'] === undefined) return isClosed ? make(bytes.subarray(start), bytes.length) : undefined;
  const end = start + Number(headers['content-length']);
  return bytes.length < end ? undefined : make(bytes.subarray(start, end), end);
}

function readChunks(bytes: Buffer, start: number): { data: Buffer; end: number } | undefined {
  const chunks: Buffer[] = [];
  for (let at = start; ;) {
    const lineEnd = bytes.indexOf('\r\n', at);
    if (lineEnd < 0) return undefined;
    const line = bytes.subarray(at, lineEnd).toString('latin1');
    if (!/^[0-9a-f]+$/i.test(line)) throw new Error(`an invalid chunk size: ${JSON.stringify(line.slice(0, 50))}`);
    const size = parseInt(line, 16);
    const end = lineEnd + 2 + size + 2;
    if (bytes.length < end) return undefined;
    chunks.push(bytes.subarray(lineEnd + 2, end - 2));
    at = end;
    if (size === 0) return { data: Buffer.concat(chunks), end };
  }
}
