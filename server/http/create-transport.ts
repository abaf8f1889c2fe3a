import type { Transport, TransportOptions } from './transport';

/** uWebSockets.js where its binary loads, else node:http; loaded when asked for, as each costs start-up time. */
export async function createTransport(wish: 'auto' | 'uws' | 'node', options: TransportOptions): Promise<Transport> {
  if (wish !== 'node') {
    const { loadUws } = await import('./uws-module.js');
    const uws = loadUws();
    if (uws !== undefined) {
      const { UwsTransport } = await import('./uws.js');
      return new UwsTransport(uws, options);
    }
    if (wish === 'uws')
      throw new Error(
        `uWebSockets.js has no binary that loads here (${process.platform}-${process.arch}, Node ${process.version}): use --http-transport node`,
      );
  }
  const { NodeTransport } = await import('./node.js');
  return new NodeTransport(options);
}
