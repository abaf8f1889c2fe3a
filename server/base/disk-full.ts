/**
 * Matches the messages of the kernel and of databases for a full disk. Error codes do not survive thread and pipe
 * boundaries.
 */
export const DISK_FULL = /\bENOSPC\b|No space left on device|\bEDQUOT\b|Disk quota exceeded|database or disk is full/i;
