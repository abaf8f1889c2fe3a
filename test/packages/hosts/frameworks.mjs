// Mounts `capstan/server` in web frameworks. Calls each with the client of OpenAI: a chat, a stream, and a file.
import { mkdtempSync, rmSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { serve } from '@hono/node-server';
import { createHandler } from 'capstan/server';
import express from 'express';
import Fastify from 'fastify';
import { Hono } from 'hono';
import OpenAI from 'openai';
import { chat } from './chat.mjs';

const dataDir = mkdtempSync(join(tmpdir(), 'capstan-frameworks-'));
const handler = await createHandler({ model: 'demo', rootPath: '/ai', dataDir });

const listen = (server) =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve([server.address().port, () => server.close()])));

const hosts = {
  'node:http': () => listen(http.createServer(handler.node)),
  express: () => listen(http.createServer(express().use('/ai', handler.node))),
  'express that parses bodies': () => listen(http.createServer(express().use(express.json()).use('/ai', handler.node))),
  async fastify() {
    const fastify = Fastify();
    fastify.addContentTypeParser('multipart/form-data', (_request, _payload, done) => done(null));
    fastify.all('/ai/*', (request, reply) => {
      reply.hijack();
      handler.node(Object.assign(request.raw, { body: request.body }), reply.raw);
    });
    await fastify.listen({ host: '127.0.0.1', port: 0 });
    return [fastify.server.address().port, () => fastify.close()];
  },
  async hono() {
    const hono = new Hono();
    hono.all('/ai/*', (context) => handler(context.req.raw));
    return new Promise((resolve) => {
      const server = serve({ fetch: hono.fetch, hostname: '127.0.0.1', port: 0 }, ({ port }) =>
        resolve([port, () => server.close()]),
      );
    });
  },
};

const line = { custom_id: 'a', method: 'POST', url: '/v1/completions', body: { prompt: 'a' } };

async function uploadAndDelete(baseURL) {
  const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0 });
  const { id } = await client.files.create({ file: new File([JSON.stringify(line)], 'a.jsonl'), purpose: 'batch' });
  await client.files.delete(id);
}

for (const [name, start] of Object.entries(hosts)) {
  const [port, stop] = await start();
  const url = `http://127.0.0.1:${port}/ai/v1`;
  console.log(`${name}: ${await chat(url)}`);
  await uploadAndDelete(url);
  stop();
}
await handler.close();
rmSync(dataDir, { recursive: true, force: true });
