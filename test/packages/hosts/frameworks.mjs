// Mounts `capstan/server` in web frameworks. Calls each with the client of OpenAI: a chat, and a stream.
import http from 'node:http';
import { serve } from '@hono/node-server';
import { createHandler } from 'capstan/server';
import express from 'express';
import Fastify from 'fastify';
import { Hono } from 'hono';
import { chat } from './chat.mjs';

const handler = await createHandler({ model: 'demo', rootPath: '/ai' });

const listen = (server) =>
  new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve([server.address().port, () => server.close()])));

const hosts = {
  'node:http': () => listen(http.createServer(handler.node)),
  express: () => listen(http.createServer(express().use('/ai', handler.node))),
  'express that parses bodies': () => listen(http.createServer(express().use(express.json()).use('/ai', handler.node))),
  async fastify() {
    const fastify = Fastify();
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

for (const [name, start] of Object.entries(hosts)) {
  const [port, stop] = await start();
  console.log(`${name}: ${await chat(`http://127.0.0.1:${port}/ai/v1`)}`);
  stop();
}
await handler.close();
