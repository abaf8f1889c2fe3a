/** Makes new versions of a deployment, and remembers what the service acknowledged. */
import type { Served } from './chats';
import type { Ledger } from './ledger';
import { type Management, type Outcome, outcomeOf } from './management';

export class VersionWriter {
  /** Notes of versions. */
  readonly written: { deploymentId: string; note: string; outcome: Outcome }[] = [];
  readonly #api: Management;
  readonly #ledger: Ledger;

  constructor(api: Management, ledger: Ledger) {
    this.#api = api;
    this.#ledger = ledger;
  }

  async write({ id, name }: Served): Promise<Outcome> {
    const note = `version ${this.written.length + 1} of the run`;
    const beganMs = performance.now();
    const received = await this.#api.call('POST', `/deployments/${id}/versions`, { body: { note } });
    const outcome = outcomeOf(received);
    this.written.push({ deploymentId: id, note, outcome });
    this.#ledger.count(`change ${outcome}`);
    // A roll-out that has not ended refuses the next one.
    const isFine = outcome === 'acknowledged' || received.status === 409;
    if (!isFine && !this.#ledger.isExcused('changes', beganMs))
      this.#ledger.problem(`new version of ${name}: ${received.status} ${received.json?.code ?? received.error}`);
    return outcome;
  }
}
