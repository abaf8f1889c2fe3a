/**
 * The interfaces that an upstream may have: chat completions, responses, and Anthropic's messages. Requests to another
 * one are converted.
 */
export const UPSTREAM_INTERFACES = ['chat', 'responses', 'messages'] as const;
export type UpstreamInterface = (typeof UPSTREAM_INTERFACES)[number];
