export const LOG_LEVELS = ['debug', 'info', 'warn', 'error', 'silent'] as const;
