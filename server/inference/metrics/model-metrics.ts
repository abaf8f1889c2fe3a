import { Counter, Gauge, type Registry } from 'prom-client';
import type { Engine } from '../../../ts';
import type { ModelPool, ModelState } from '../models/model-pool';

const STATES: readonly ModelState[] = ['unloaded', 'loading', 'loaded', 'unloading', 'sleeping'];

/** Registers what a pool of models counts. All have the label `model_name`. */
export function registerModelMetrics(registry: Registry, pool: ModelPool<Engine>): void {
  const common = { registers: [registry] };
  const { slots } = pool;
  new Gauge({
    ...common,
    name: 'capstan_model_state',
    help: '1 for the state that a model is in: unloaded, loading, loaded, unloading or sleeping',
    labelNames: ['model_name', 'state'],
    collect() {
      for (const { model, state } of slots)
        for (const each of STATES) this.set({ model_name: model.name, state: each }, each === state ? 1 : 0);
    },
  });
  new Gauge({
    ...common,
    name: 'capstan_model_memory_bytes',
    help: 'Memory of the weights and the KV cache of a model that is loading or loaded, else 0',
    labelNames: ['model_name'],
    collect() {
      for (const slot of slots) this.set({ model_name: slot.model.name }, slot.isInMemory ? slot.model.neededBytes : 0);
    },
  });
  new Gauge({
    ...common,
    name: 'capstan_model_requests_waiting',
    help: 'Requests that wait for a model to load',
    labelNames: ['model_name'],
    collect() {
      for (const { model, waiters } of slots) this.set({ model_name: model.name }, waiters.size);
    },
  });
  new Counter({
    ...common,
    name: 'capstan_model_loads_total',
    help: 'Loads of a model by outcome: loaded or failed',
    labelNames: ['model_name', 'outcome'],
    collect() {
      this.reset();
      for (const { model, counts } of slots) {
        this.inc({ model_name: model.name, outcome: 'loaded' }, counts.loads);
        this.inc({ model_name: model.name, outcome: 'failed' }, counts.failures);
      }
    },
  });
  new Counter({
    ...common,
    name: 'capstan_model_unloads_total',
    help: 'Unloads of a model by reason: for the memory of another model, idle, or a request',
    labelNames: ['model_name', 'reason'],
    collect() {
      this.reset();
      for (const { model, counts } of slots)
        for (const [reason, count] of Object.entries(counts.unloads))
          this.inc({ model_name: model.name, reason }, count);
    },
  });
}
