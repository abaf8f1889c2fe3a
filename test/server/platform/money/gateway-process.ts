/** A gateway with budgets in a process that tests kill. Its first argument is JSON. Prints the port. */
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { createTransport } from '../../../../server/http/create-transport';
import { Gateway } from '../../../../server/platform/gateway/gateway';
import { type Target, Targets } from '../../../../server/platform/gateway/targets';
import { MoneyMeter } from '../../../../server/platform/money/money-meter';
import { openServiceStore } from '../../../../server/platform/store/store';

export interface GatewayProcessOptions {
  location: DatabaseLocation;
  target: Target;
}

async function main({ location, target }: GatewayProcessOptions): Promise<void> {
  const log = { debug: () => {}, info: () => {}, warn: console.error, error: console.error };
  const store = await openServiceStore({ location, secretKey: new Uint8Array(32) });
  const billing = await MoneyMeter.open({ store, log });
  billing.start();
  const targets = new Targets();
  targets.set(target);
  const refuse = () => {
    throw new Error('the deployment is public');
  };
  const gateway = new Gateway({
    targets,
    control: { wake: () => {}, onOpenRequests: () => {} },
    access: { check: refuse, identify: refuse },
    log: log as never,
    billing,
  });
  const transport = await createTransport('node', {
    handler: gateway.handle,
    maxBodyBytes: 1_000_000,
    bodyTimeoutMs: 20_000,
    streamsBodies: true,
  });
  console.log(await transport.listen('127.0.0.1', 0));
}

void main(JSON.parse(process.argv[2]) as GatewayProcessOptions);
