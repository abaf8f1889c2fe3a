import type { Deployment, NewDeployment } from '../../api/objects';

type Upstream = NonNullable<NewDeployment['upstream']>;
type Interface = NonNullable<Upstream['interfaces']>[number];

/** The interfaces in the order of the form. */
export const INTERFACES = ['chat', 'responses', 'messages'] as const satisfies readonly Interface[];

export interface UpstreamDraft {
  url: string;
  /** Empty: keeps the stored key, or none. */
  secret: string;
  /** A stored key is removed. */
  removesSecret: boolean;
  model: string;
  interfaces: readonly Interface[];
}

export const EMPTY_UPSTREAM: UpstreamDraft = {
  url: '',
  secret: '',
  removesSecret: false,
  model: '',
  interfaces: ['chat'],
};

export function upstreamDraft({ url, model, interfaces }: NonNullable<Deployment['upstream']>): UpstreamDraft {
  return { ...EMPTY_UPSTREAM, url, model: model ?? '', interfaces };
}

export function isUpstream({ url, interfaces }: UpstreamDraft): boolean {
  return isUrl(url) && isConvertible(interfaces);
}

export function isUrl(url: string): boolean {
  return /^https?:\/\/[^\s]+$/.test(url.trim());
}

/** Requests are converted to one of these two. */
export function isConvertible(interfaces: UpstreamDraft['interfaces']): boolean {
  return interfaces.includes('chat') || interfaces.includes('messages');
}

export function toUpstream({ url, secret, removesSecret, model, interfaces }: UpstreamDraft): Upstream {
  return {
    url: url.trim(),
    ...(removesSecret ? { secret: null } : {}),
    ...(secret === '' ? {} : { secret }),
    model: model.trim() === '' ? null : model.trim(),
    interfaces: [...interfaces],
  };
}
