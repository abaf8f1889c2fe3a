import { qrMatrix } from '../format/qr-code';

/** Dark on white in every theme: cameras want it so. */
export function QrCode({ text, label }: { text: string; label: string }) {
  const matrix = qrMatrix(text);
  if (matrix === undefined) return null;
  const size = matrix.length;
  const path = matrix
    .flatMap((row, y) => row.map((isDark, x) => (isDark ? `M${x + 2} ${y + 2}h1v1h-1z` : '')))
    .join('');
  return (
    <div class="qr">
      <svg viewBox={`0 0 ${size + 4} ${size + 4}`} role="img" aria-label={label} shape-rendering="crispEdges">
        <path d={path} fill="#000" />
      </svg>
    </div>
  );
}
