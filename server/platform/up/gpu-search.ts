import type { Clock } from '../control/clock';
import type { Controller, ControllerLog } from '../control/controller';
import type { Driver, DriverCapacity } from '../driver/driver';
import type { ServiceStore } from '../store/store';

export interface GpuSearchOptions {
  driver: Pick<Driver, 'capacity'>;
  store: Pick<ServiceStore, 'setCapacity'>;
  controller: Pick<Controller, 'capacityFreed'>;
  log: ControllerLog;
  clock: Clock;
}

const RETRY_MS = 30_000;

/** Looks again for GPUs that could not be listed at startup, until they are found. Returns a function that ends it. */
export function searchGpus(options: GpuSearchOptions, { gpuProblem }: DriverCapacity): () => void {
  if (gpuProblem === undefined) return () => {};
  let isClosed = false;
  let cancel = (): void => {};
  const retryLater = (reason: string): void => {
    options.log.warn({ reason }, `cannot list the GPUs of this machine, retrying in ${RETRY_MS / 1000} s`);
    cancel = options.clock.after(RETRY_MS, () => void search());
  };
  const search = async (): Promise<void> => {
    const problem = await findGpus(options).catch((error: Error) => error.message);
    if (problem !== undefined && !isClosed) retryLater(problem);
  };
  retryLater(gpuProblem);
  return () => {
    isClosed = true;
    cancel();
  };
}

/** Returns why the GPUs are still unknown, or undefined when they are found. */
async function findGpus({ driver, store, controller, log }: GpuSearchOptions): Promise<string | undefined> {
  const capacity = await driver.capacity();
  if (capacity.gpuProblem !== undefined) return capacity.gpuProblem;
  await store.setCapacity(capacity);
  log.info({ gpus: capacity.gpus.length }, 'listed the GPUs of this machine');
  await controller.capacityFreed();
  return undefined;
}
