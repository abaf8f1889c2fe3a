/** The identity provider does not respond, or its settings are wrong. The message is for users. */
export class ProviderFault extends Error {}
