import { qrRows } from '../format/qr';

/** Width of the quiet zone, in modules. */
const BORDER = 2;

/** A QR code, dark on white in both themes: many cameras cannot read inverted codes. */
export function QrCode({ text, label }: { text: string; label: string }) {
  const rows = qrRows(text);
  const size = rows.length + 2 * BORDER;
  const path = rows
    .flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + BORDER} ${y + BORDER}h1v1h-1z` : '')))
    .join('');
  return (
    <div class="qr">
      <svg viewBox={`0 0 ${size} ${size}`} role="img" aria-label={label} shape-rendering="crispEdges">
        <path d={path} fill="#000" />
      </svg>
    </div>
  );
}
