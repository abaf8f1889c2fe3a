// A server of the Model Context Protocol over standard input and output, with one tool.
'use strict';

const RESULTS = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: 'docs', version: '1' },
  }),
  'tools/list': () => ({
    tools: [
      {
        name: 'find',
        description: 'Finds a page.',
        inputSchema: { type: 'object', properties: { query: { type: 'string' } }, required: ['query'] },
      },
    ],
  }),
  'tools/call': ({ arguments: args }) => ({ content: [{ type: 'text', text: `A page about ${args.query}` }] }),
};

require('node:readline')
  .createInterface({ input: process.stdin })
  .on('line', (line) => {
    const { id, method, params } = JSON.parse(line);
    if (id === undefined) return;
    const result = RESULTS[method]?.(params) ?? {};
    process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id, result })}\n`);
  });
