import { REFUSALS } from './zh-cn-refusals';

/**
 * Translations of texts that the service writes: reasons of failures, and notes in logs. Each pattern covers a whole
 * text. `$1` is a part of it, which is translated too. `$=1` is a name or a value, which stays. Unknown texts stay as
 * they are.
 */
const TEXTS: readonly (readonly [pattern: RegExp, translation: string])[] = [
  // How often a replica ended, and how.
  [/^exited once: (.+)$/s, '退出 1 次：$1'],
  [/^exited (\d+) times: (.+)$/s, '退出 $1 次：$2'],
  [/^exited once, last by a signal$/, '因信号退出 1 次'],
  [/^exited (\d+) times, last by a signal$/, '退出 $1 次，最后一次因信号退出'],
  [/^exited once, last with exit code (\d+)$/, '以退出码 $1 退出 1 次'],
  [/^exited (\d+) times, last with exit code (\d+)$/, '退出 $1 次，最后一次的退出码为 $2'],
  [/^Stopped$/, '已停止'],
  [/^Stopped: killed after the grace period$/, '已停止：宽限期过后被强制结束'],
  [/^Ended with exit code (\d+)$/, '以退出码 $1 结束'],
  [/^Ended with signal (\w+)$/, '因信号 $1 结束'],
  [/^(Ended with .+), and its log mentions (a lack of GPU memory|a lack of memory|a full disk)$/, '$1，日志中提到$2'],
  [/^(Ended with .+), and its log mentions a network error: (at isolation level .+)$/, '$1，日志中提到网络错误：$2'],
  [/^(Ended with [^,:]+): (--.+)$/, '$1：$2'],
  [/^a lack of GPU memory$/, '显存不足'],
  [/^a lack of memory$/, '内存不足'],
  [/^a full disk$/, '磁盘已满'],
  [
    /^at isolation level L2 a deployment cannot reach other machines\. Mount all files that it needs as data sources$/,
    '在隔离级别 L2，部署无法访问其他机器。请将所需的全部文件绑定为数据',
  ],
  [/^The replica tried to reach another machine: (.+)$/, '副本试图访问其他机器：$1'],
  [
    /^The supervisor was killed, and the replica with it; the cause is unknown$/,
    '监控进程被强制结束，副本也随之结束；原因未知',
  ],
  [/^Killed by the kernel because it exceeded its memory limit$/, '超出内存上限，被内核强制结束'],
  [
    /^Killed because it exceeded its memory limit, which is measured twice a second$/,
    '超出内存上限（每秒测量两次），已被强制结束',
  ],
  [
    /^Killed by signal 9 \(SIGKILL\), which this service did not send: (.+)$/,
    '被信号 9（SIGKILL）强制结束，该信号不是本服务发送的：$1',
  ],
  [/^the kernel reports no lack of memory$/, '内核报告内存充足'],
  [
    /^by the kernel when the machine ran out of memory, or by another process$/,
    '由内核在机器内存耗尽时发送，或由其他进程发送',
  ],
  [
    /^Killed because it added more to its home than one replica may, which is measured every few seconds$/,
    '写入 home 目录的数据超过单个副本的上限（每隔几秒测量一次），已被强制结束',
  ],
  [
    /^Killed because its home and its open files have too many entries to be measured in time$/,
    'home 目录和打开的文件数量过多，无法及时测量，已被强制结束',
  ],
  [
    /^Killed because the folder of its prefix cache held far more than its limit\. The folder is removed$/,
    '前缀缓存文件夹远超上限，已被强制结束。该文件夹已删除',
  ],
  [
    /^Killed because the disk is almost full and the replica holds deleted files or processes that cannot be measured$/,
    '磁盘将满，而副本持有无法测量的已删除文件或进程，已被强制结束',
  ],

  // Why it did not start, or is not ready.
  [/^no process was started within (\d+) s$/, '$1 秒内没有进程启动'],
  [/^was not ready within (\d+) s$/, '$1 秒内没有就绪'],
  [/^failed its health checks for (\d+) s$/, '健康检查已连续失败 $1 秒'],
  [/^The health check fails: (.+)$/s, '健康检查失败：$1'],
  [/^The replica did not start: (.+)$/s, '副本没有启动：$1'],
  [
    /^The replica did not start because the disk of the data directory is full: (.+)$/s,
    '数据目录所在磁盘已满，副本没有启动：$1',
  ],
  [/^The supervisor did not report its state$/, '监控进程没有报告状态'],
  [/^(The deployment .+)\. (The service can(?:not)? .+)$/, '$1。$2'],
  [
    /^The replica ended, and its log mentions an address that it may not listen on(?:\. (.+))?$/,
    '副本已结束，日志中提到一个不允许监听的地址。$1',
  ],
  [/^The deployment does not listen on any port: listen on (.+)$/, '部署没有监听任何端口：请监听 $1'],
  [/^The deployment listens on port ([\d, ]+): listen on (.+)$/, '部署监听了端口 $1：请监听 $2'],
  [
    /^The deployment listens on (\S+), which only the deployment itself can reach: listen on (.+)$/,
    '部署监听了 $1，只有部署本身可以访问：请监听 $2',
  ],
  [/^(\S+), port (\S+)$/, '$1，端口 $2'],
  [/^(\S+), port (\S+) \(here (\S+)\)$/, '$1，端口 $2（此处为 $3）'],
  [
    /^The service can use neither namespaces nor port 80 on this machine, so each deployment has its own port: the start script must read it from these variables$/,
    '服务在本机既不能使用命名空间，也不能使用端口 80，因此每个部署有各自的端口：启动脚本必须从这些变量读取',
  ],
  [
    /^The service cannot use namespaces on this machine, so each deployment has its own address: the start script must read it from these variables$/,
    '服务在本机不能使用命名空间，因此每个部署有各自的地址：启动脚本必须从这些变量读取',
  ],
  [
    /^(\S+ returned \d{3}): a deployment is ready once its health path returns 200 to 299$/,
    '$1：健康检查路径返回 200 到 299 后，部署才算就绪',
  ],
  [/^(\S+) returned (\d{3})$/, '$1 返回 $2'],
  [/^The prefix cache is not kept on the disk: (.+)$/s, '前缀缓存没有保存到磁盘：$1'],

  // What it waits for.
  [/^needs (\d+) free GPUs?, (\d+) available$/, '需要 $1 个空闲 GPU，可用 $2 个'],
  [/^needs (\d+) free GPUs? of type (.+), (\d+) available$/, '需要 $1 个型号为 $2 的空闲 GPU，可用 $3 个'],
  [/^needs (\d+) MiB of memory, (\d+) MiB available$/, '需要 $1 MiB 内存，可用 $2 MiB'],
  [/^needs (.+), (.+) left of the owner's quota of (.+)$/, '需要 $1，所有者配额为 $3，剩余 $2'],
  [/^(\d+) GPUs?$/, '$1 个 GPU'],
  [/^([\d.]+) CPU cores?$/, '$1 个 CPU 核心'],
  [/^(\d+) MiB of memory$/, '$1 MiB 内存'],
  [/^(\d+) MiB of disk$/, '$1 MiB 磁盘'],
  [/^(\S+) is downloaded into the data source (.+)$/, '$1 正在下载到数据源 $2'],
  [/^(\S+): the download was cancelled$/, '$1：下载已取消'],

  [/^waited (\d+) s: (.+)$/s, '等待了 $1 秒：$2'],
  [/^an earlier operation did not end$/, '先前的操作没有结束'],

  // Data.
  [/^cannot copy the home: (.+)$/s, '无法复制 home 目录：$1'],
  [/^(home|input\d): the data no longer exists$/, '$1：数据已不存在'],
  [
    /^(home|input\d): the data must be readable by all users of this machine, because deployments run as another user$/,
    '$1：数据必须对本机所有用户可读，因为部署以另一个用户运行',
  ],
  [
    /^(home|input\d): its model is not complete\. Wait until the download ends, or pull it again$/,
    '$1：模型不完整。请等待下载结束，或重新下载',
  ],
  [
    /^(home|input\d): expected an existing folder below a data root: it was deleted, moved or replaced by a link$/,
    '$1：应为数据根目录下的现有文件夹：它已被删除、移动或替换为链接',
  ],
  [/^home: its copy is missing in the data directory$/, 'home：数据目录中缺少其拷贝'],

  // Containers, canaries and webhooks.
  [
    /^it ran on another machine, whose service no longer controls it$/,
    '它曾在另一台机器上运行，那里的服务已不再控制它',
  ],
  [/^it ended while the service was not running$/, '它在服务未运行期间结束'],
  [
    /^errors: (\d+) of (\d+) requests, and (\d+) of (\d+) of the (?:active|stable) version$/,
    '错误：$2 个请求中有 $1 个，当前版本 $4 个中有 $3 个',
  ],
  [
    /^first token: (\d+) ms, and (\d+) ms of the (?:active|stable) version \(medians\)$/,
    '首 token 延迟：$1 毫秒，当前版本为 $2 毫秒（中位数）',
  ],
  [/^no message was delivered since (\S+); last error: (.+)$/s, '自 $1 起没有成功发送消息；最后一次错误：$2'],

  // The isolation of the machine.
  [/^(Each deployment has .+) (Memory (?:and CPU time are limited|is monitored and CPU time is shared).+)$/s, '$1$2'],
  [/^Memory and CPU time are limited by control groups\.$/, '内存和 CPU 时间由控制组限制。'],
  [
    /^Memory is monitored and CPU time is shared, because the service cannot create control groups here\.$/,
    '服务在此处无法创建控制组，因此只监控内存，CPU 时间由所有部署共享。',
  ],
  [
    /^Each deployment has its own namespaces, port 80 on all addresses and read-only inputs\. It cannot access the data of the service or other deployments\. It cannot reach other machines: mount all files that it needs as data sources\.$/,
    '每个部署有各自的命名空间、所有地址上的端口 80 和只读输入。它不能访问服务或其他部署的数据，也无法访问其他机器：请将所需的全部文件绑定为数据。',
  ],
  [
    /^Each deployment has port 80 on a separate loopback address\. Start scripts must listen on PLATFORM_SERVING_HOST\. Deployments can access every file and process that the service can access\. Namespaces: (.+)\.$/s,
    '每个部署在单独的回环地址上使用端口 80。启动脚本必须监听 PLATFORM_SERVING_HOST。部署可以访问服务能访问的所有文件和进程。命名空间：$1。',
  ],
  [
    /^Each deployment has a free port on 127\.0\.0\.1\. Start scripts must listen on PLATFORM_SERVING_HOST and PLATFORM_SERVING_PORT\. Deployments can access every file and process that the service can access\. Namespaces: (.+)\. Port 80: (.+)\.$/s,
    '每个部署在 127.0.0.1 上使用一个空闲端口。启动脚本必须监听 PLATFORM_SERVING_HOST 和 PLATFORM_SERVING_PORT。部署可以访问服务能访问的所有文件和进程。命名空间：$1。端口 80：$2。',
  ],
  [/^level (L\d) was requested$/, '已指定级别 $1'],
  ...REFUSALS,
];

/** Translates a text of the service, or returns it as it is. */
export function translateServiceText(text: string): string {
  for (const [pattern, translation] of TEXTS) {
    const parts = pattern.exec(text);
    if (parts !== null)
      return translation.replace(/\$(=?)(\d)/g, (_whole, verbatim: string, i: string) => {
        const part = parts[Number(i)] ?? '';
        return verbatim === '' ? translateServiceText(part) : part;
      });
  }
  return text;
}
