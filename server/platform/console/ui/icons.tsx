/** SVG paths on a 16 × 16 grid, drawn as strokes. */
const SHAPES = {
  deployments: 'M8 1.8 14 5v6l-6 3.2L2 11V5zM2 5l6 3.2L14 5M8 8.2v6',
  containers: 'M1.8 3.5h12.4v9H1.8zM4.5 6.2 6.6 8l-2.1 1.8M8.4 10h3',
  data: 'M2.5 4c0-1.2 2.5-2 5.5-2s5.5.8 5.5 2-2.5 2-5.5 2-5.5-.8-5.5-2zM2.5 4v8c0 1.2 2.5 2 5.5 2s5.5-.8 5.5-2V4M2.5 8c0 1.2 2.5 2 5.5 2s5.5-.8 5.5-2',
  orgs: 'M5.8 7.2a2.4 2.4 0 1 0 0-4.8 2.4 2.4 0 0 0 0 4.8zM1.5 13.6c0-2.6 1.9-4.2 4.3-4.2s4.3 1.6 4.3 4.2M10.4 7.1a2.2 2.2 0 0 0 .3-4.3M12 9.6c1.5.6 2.5 2 2.5 4',
  key: 'M5 14a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM7.2 8.8 13.6 2.4M10.8 5.2l2.2 2.2',
  audit: 'M3.5 1.8h9v12.4h-9zM5.8 5h4.4M5.8 8h4.4M5.8 11h2.4',
  account: 'M8 7.6a2.9 2.9 0 1 0 0-5.8 2.9 2.9 0 0 0 0 5.8zM2.4 14.2c0-3.1 2.4-5 5.6-5s5.6 1.9 5.6 5',
  costs:
    'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 3.8v8.4M10 5.6H7.2a1.2 1.2 0 0 0 0 2.4h1.6a1.2 1.2 0 0 1 0 2.4H6',
  plus: 'M8 3v10M3 8h10',
  close: 'M3.6 3.6l8.8 8.8M12.4 3.6l-8.8 8.8',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  check: 'M2.8 8.6 6.3 12l6.9-7.6',
  more: 'M3.4 8h.1M8 8h.1M12.6 8h.1',
  menu: 'M2 4h12M2 8h12M2 12h12',
  play: 'M4.5 2.8v10.4L13 8z',
  stop: 'M4 4h8v8H4z',
  restart: 'M13.2 8a5.2 5.2 0 1 1-1.6-3.7M13.4 1.9v3h-3',
  sleep: 'M13.4 9.6A5.8 5.8 0 0 1 6.4 2.6a5.8 5.8 0 1 0 7 7z',
  trash: 'M2.5 4.2h11M6 4.2V2.4h4v1.8M4 4.2l.6 9.4h6.8l.6-9.4M6.6 7v4M9.4 7v4',
  rocket:
    'M6 10 4.4 8.4C5.4 5 8 2.4 13.6 2.4 13.6 8 11 10.6 7.6 11.6zM4.4 8.4H2l1.8-2.6 2 .2M7.6 11.6V14l2.6-1.8-.2-2M2.4 13.6l2-2M10 6h.1',
  send: 'M14 2 7 9M14 2 9.6 14 7 9 2 6.4z',
  warning: 'M8 2 1.4 13.6h13.2zM8 6.4v3.4M8 11.7v.1',
  info: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 7.4v3.6M8 5v.1',
  error: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 4.8v4M8 11v.1',
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.6 10.6 14 14',
  download: 'M8 2v8M4.6 6.8 8 10.2l3.4-3.4M2.5 13.5h11',
  external: 'M9.5 2.5h4v4M13.5 2.5 7.5 8.5M11.5 9v4.5h-9v-9H7',
  edit: 'M3 13l.6-3L11 2.6 13.4 5 6 12.4zM9.4 4.2l2.4 2.4',
  signOut: 'M6 2.5H2.5v11H6M10.5 4.8 13.7 8l-3.2 3.2M13.5 8H6',
  theme: 'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM8 1.8v12.4M8 5l4.6-1.2M8 8h6M8 11l4.6 1.2',
  language:
    'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM1.8 8h12.4M8 1.8c2 1.8 2.8 3.9 2.8 6.2S10 12.4 8 14.2C6 12.4 5.2 10.3 5.2 8S6 3.6 8 1.8',
  lock: 'M3.5 7.2h9v6.6h-9zM5.4 7.2V5a2.6 2.6 0 0 1 5.2 0v2.2',
  globe:
    'M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4zM1.8 8h12.4M8 1.8c2 1.8 2.8 3.9 2.8 6.2S10 12.4 8 14.2C6 12.4 5.2 10.3 5.2 8S6 3.6 8 1.8',
  rotate: 'M13.2 6.5A5.3 5.3 0 0 0 3.4 5M2.8 2.4V5.2h2.8M2.8 9.5A5.3 5.3 0 0 0 12.6 11M13.2 13.6v-2.8h-2.8',
} as const;

export type IconName = keyof typeof SHAPES;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width={name === 'more' ? 2.4 : 1.5}
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      <path d={SHAPES[name]} />
    </svg>
  );
}

export function Mark({ size = 28 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" fill="#0b6a70" />
      <g fill="none" stroke="#fff" stroke-width="2.4" stroke-linecap="round">
        <circle cx="16" cy="16" r="5" />
        <path d="M16 5v6M16 21v6M5 16h6M21 16h6M8.2 8.2l4.2 4.2M19.6 19.6l4.2 4.2M8.2 23.8l4.2-4.2M19.6 12.4l4.2-4.2" />
      </g>
    </svg>
  );
}
