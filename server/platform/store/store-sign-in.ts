import type { From, ServiceActor } from '../accounts/actor';
import {
  confirmIdentity,
  dueIdentities,
  endIdentity,
  findProviderSession,
  postponeProvider,
  type ProviderClaims,
  type ProviderTokens,
  type ReadIdentity,
  signInWithProvider,
  takeSignIn,
} from '../sign-in/identities';
import {
  createProvider,
  deleteProvider,
  editProvider,
  getProvider,
  listProviders,
  listSignInProviders,
  type NewProvider,
  type ProviderEdit,
  readProviderClient,
} from '../sign-in/providers';
import type { StoreContext } from './store-context';

const PENDING = 'pending sign-in';

/** Methods with an actor check its rights. The others are for the sign-in. */
export function signInMethods(context: StoreContext) {
  const { box } = context;
  return {
    listProviders: (actor: ServiceActor) => listProviders(context, actor),
    getProvider: (actor: ServiceActor, id: string) => getProvider(context, actor, id),
    createProvider: (actor: ServiceActor, spec: NewProvider) => createProvider(context, actor, spec),
    editProvider: (actor: ServiceActor, id: string, edit: ProviderEdit, ifRev?: number) =>
      editProvider(context, actor, id, edit, ifRev),
    deleteProvider: (actor: ServiceActor, id: string) => deleteProvider(context, actor, id),

    listSignInProviders: () => listSignInProviders(context),
    readProviderClient: (id: string) => readProviderClient(context, id),
    sealSignIn: (text: string) => Promise.resolve(box.seal(text, PENDING)),
    /** Returns undefined for a text that this service has not sealed. */
    openSignIn: (sealed: string): Promise<string | undefined> => {
      try {
        return Promise.resolve(box.open(sealed, PENDING));
      } catch {
        return Promise.resolve(undefined);
      }
    },
    takeSignIn: (state: string, expiresAt: number) => takeSignIn(context, state, expiresAt),
    signInWithProvider: (
      providerId: string,
      claims: ProviderClaims,
      tokens: ProviderTokens,
      from: From,
      replaced?: string,
    ) => signInWithProvider(context, providerId, claims, tokens, from, replaced),
    findProviderSession: (idHash: string) => findProviderSession(context, idHash),
    dueIdentities: () => dueIdentities(context),
    confirmIdentity: (claims: ProviderClaims, refreshToken: string | null, confirmedAt: number) =>
      confirmIdentity(context, claims, refreshToken, confirmedAt),
    endIdentity: (identity: ReadIdentity, reason: string) => endIdentity(context, identity, reason),
    postponeProvider: (identity: ReadIdentity) => postponeProvider(context, identity),
  };
}

export type SignInStore = ReturnType<typeof signInMethods>;
