import { AccessError } from '../access';
import { parseKey } from '../access/key-format';
import { keyView } from './key-access';
import { KeyInspection, KeyText } from './objects';
import { ApiProblem } from './problem';
import { type ApiRoute, defineRoute } from './route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: '/api/v1/keys/inspect',
    summary: 'Whether a text that turned up somewhere is a key, and which; for administrators',
    tag: 'keys',
    auth: 'any',
    body: KeyText,
    answers: { 200: KeyInspection },
    handle: async ({ context: { store }, actor, attempts, body }) => {
      if (!actor.isAdmin) throw new ApiProblem('forbidden', 'this needs an administrator');
      // Counted whatever comes out: keys are not to be tried one after the other.
      attempts.demand(actor.userId);
      attempts.count(actor.userId);
      const publicId = parseKey(body.key) ?? null;
      const key =
        publicId === null
          ? undefined
          : await store.getKey(publicId).catch((error: unknown) => {
              if (error instanceof AccessError && error.code === 'not_found') return undefined;
              throw error;
            });
      return {
        status: 200,
        body: {
          well_formed: publicId !== null,
          public_id: publicId,
          key: key === undefined ? null : keyView(key),
        } satisfies KeyInspection,
      };
    },
  }),
];
