/** What the kernel, and databases, say of a disk without room; what crosses threads and pipes keeps no code. */
export const DISK_FULL = /\bENOSPC\b|No space left on device|\bEDQUOT\b|Disk quota exceeded|database or disk is full/i;
