import type { ApiContext } from '../context';
import { ApiProblem } from '../problem';

/** Runs a control step for a saved change. A step that fails is repeated, so the response does not wait for it. */
export async function reconcileSaved(
  { controller, log }: Pick<ApiContext, 'controller' | 'log'>,
  id: string,
): Promise<void> {
  await controller?.reconcile(id).catch((error: Error) => log.debug({ id, reason: error.message }, 'step repeated'));
}

/**
 * Runs a control step for a saved change that the gateway must follow before the response.
 * @param next What the caller can do.
 * @throws ApiProblem `unavailable` with `problem` and `next` if the step fails. It is repeated.
 */
export async function applied(
  { controller }: Pick<ApiContext, 'controller'>,
  id: string,
  problem: string,
  next: string,
): Promise<void> {
  try {
    await controller?.reconcile(id);
  } catch (error) {
    throw new ApiProblem('unavailable', `${problem}. The service repeats this step. ${next}`, {
      headers: { 'Retry-After': '1' },
      cause: error,
    });
  }
}
