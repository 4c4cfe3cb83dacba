"""Hosts of a storm: network namespaces, the launchers in them, and what can be seen of their run from outside."""

import filecmp
import glob
import os
import re
import shutil
import signal
import statistics
import subprocess
import time

from elastic_run import ElasticRun, configuration, losses

HOSTS = 3
PORT = 29400
TO_COME_TOGETHER = 120  # seconds after a disturbance
RATE, SLOW = "100mbit", "10mbit"


def run(*words):
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def memory_in_use():
    """What lies in /dev/shm, with the bytes of files."""
    found = {}
    for path, folders, files in os.walk("/dev/shm"):
        for name in folders + files:
            whole = os.path.join(path, name)
            try:
                found[whole] = 0 if os.path.isdir(whole) else os.path.getsize(whole)
            except FileNotFoundError:
                pass
    return found


class Network:
    """A namespace a host, joined by a bridge."""

    def __init__(self):
        self.name = "cs%d" % os.getpid()

    @staticmethod
    def is_possible():
        name = "cs%dx" % os.getpid()
        if not all(shutil.which(tool) for tool in ("ip", "ss", "tc")):
            return False
        return run("ip", "netns", "add", name) and run("ip", "netns", "delete", name)

    def __enter__(self):
        run("ip", "link", "add", self.name, "type", "bridge")
        run("ip", "link", "set", self.name, "up")
        for host in range(HOSTS):
            run("ip", "netns", "add", self.space(host))
            run("ip", "link", "add", self.outside(host), "type", "veth", "peer", "name", "eth0", "netns",
                self.space(host))
            run("ip", "link", "set", self.outside(host), "master", self.name, "up")
            run("ip", "-n", self.space(host), "address", "add", self.address(host) + "/24", "dev", "eth0")
            run("ip", "-n", self.space(host), "link", "set", "eth0", "up")
            run("ip", "-n", self.space(host), "link", "set", "lo", "up")
            self.shape(host, slow=False)
        return self

    def __exit__(self, *_):
        for host in range(HOSTS):
            run("ip", "netns", "delete", self.space(host))
        run("ip", "link", "delete", self.name)

    def space(self, host):
        return "%s-%d" % (self.name, host)

    def outside(self, host):
        return "%sv%d" % (self.name, host)

    @staticmethod
    def address(host):
        return "10.231.8.%d" % (host + 1)

    def shape(self, host, slow):
        for where in (["tc", "-n", self.space(host), "qdisc", "replace", "dev", "eth0"],
                      ["tc", "qdisc", "replace", "dev", self.outside(host)]):
            run(*where, "root", "tbf", "rate", SLOW if slow else RATE, "burst", "256kb", "latency", "200ms")

    def cut_off(self, host):
        run("ip", "link", "set", self.outside(host), "down")

    def join(self, host):
        run("ip", "link", "set", self.outside(host), "up")

    def cut_pair(self, host, other, one_way):
        """Nothing gets from one to the other; what comes the other way arrives where it is `one_way`."""
        for here, there in [(host, other)] if one_way else [(host, other), (other, host)]:
            run("ip", "-n", self.space(here), "route", "replace", "blackhole", self.address(there) + "/32")

    def join_pair(self, host, other):
        for here, there in [(host, other), (other, host)]:
            run("ip", "-n", self.space(here), "route", "delete", "blackhole", self.address(there) + "/32")

    def reset(self, host, other):
        """Both ends of all connections between them learn at once that they are closed, as by a firewall."""
        run("ip", "netns", "exec", self.space(host), "ss", "-K", "-tn", "dst", self.address(other))

    def left(self):
        """Processes that live on."""
        found = []
        for host in range(HOSTS):
            pids = subprocess.run(["ip", "netns", "pids", self.space(host)], capture_output=True, text=True).stdout
            found += ["process %s is left on host %d" % (pid, host) for pid in pids.split()]
        return found


class Host(ElasticRun):
    """A launcher in its namespace."""

    def __init__(self, network, number, build, folder, launch, train):
        self.network, self.number = network, number
        prefix = ["ip", "netns", "exec", network.space(number)]
        super().__init__(build, folder, launch, train, prefix=prefix, environment={
            "CAPSTAN_RDZV_SECRET": "the secret of this bench, longer than 32 characters"})

    def children(self):
        path = "/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)
        try:
            with open(path) as file:
                return [int(pid) for pid in file.read().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def signal(self, pids, number):
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def stop(self):
        self.signal([self.process.pid] + self.children(), signal.SIGSTOP)

    def wake(self):
        self.signal([self.process.pid] + self.children(), signal.SIGCONT)

    def kill_member(self):
        self.signal(self.children()[:1], signal.SIGKILL)

    def kill_launcher(self):
        self.process.kill()
        self.process.wait()

    def kill_all(self):
        """The launcher first, so that it replaces nobody."""
        self.signal([self.process.pid], signal.SIGSTOP)
        self.signal(self.children() + [self.process.pid], signal.SIGKILL)
        self.process.wait()

    def seen(self):
        """World and last step as this host knows them; None where it has none now."""
        try:
            world = self.world()
            return (world, self.last_step()) if world and self.running() else None
        except (OSError, ValueError):
            return None


class Episode:
    """A launch over all hosts, watched."""

    def __init__(self, network, build, folder, name, sizes):
        self.network, self.build, self.folder, self.name = network, build, folder, name
        self.least = int(sizes.split(":")[0])
        self.members = 2 if sizes == "2:2" else 3
        configuration(folder, name, every=5, layers=2, width=32, sequence=16)
        meeting = ",".join("%s:%d" % (network.address(host), PORT) for host in range(HOSTS))
        self.launch = ["--elastic", sizes, "-n", "1", "--rdzv", meeting]
        self.train = ["--config", name + ".json", "--steps", "100000000", "--save", name + "-ck", "--save-every", "25",
                      "--keep", "3"]
        self.hosts, self.texts = [None] * HOSTS, []
        self.steps = []          # (time, farthest step), as it was seen
        self.latest = (0, 0, 0)  # step, term and generation of the newest checkpoint
        self.token = (0, 0)      # the newest generation that may save
        self.seen_latest, self.wrong = 0, []

    def __enter__(self):
        for host in range(HOSTS):
            self.start(host)
            time.sleep(0.2)
        return self

    def __exit__(self, kind, *_):
        for host in self.hosts:
            if host:
                host.wake()
                host.kill_all()
                if kind:
                    print("--- host %d\n%s" % (host.number, host.text()[-3000:]))

    def start(self, number):
        if self.hosts[number]:
            self.texts.append(self.hosts[number].text())
        self.hosts[number] = Host(self.network, number, self.build, self.folder, self.launch, self.train)

    def look(self):
        """Notes what can be seen at this instant."""
        self.look_at_checkpoints()
        now, found = time.monotonic(), [host.seen() for host in self.hosts]
        found = [one for one in found if one]
        farthest = max((step[1] for _, step in found), default=0)
        if farthest > self.farthest():
            self.steps.append((now, farthest))
        return found

    def look_at_checkpoints(self):
        place = os.path.join(self.folder, self.name + "-ck")
        try:
            with open(os.path.join(place, "latest")) as file:
                step = int(re.search(r"\d+", file.read()).group())
            names = os.listdir(place)
        except (FileNotFoundError, AttributeError):
            return
        tokens = [(int(found.group(1)), int(found.group(2)))
                  for found in (re.fullmatch(r"\.run-[0-9a-f]+-(\d+)-(\d+)", name) for name in names) if found]
        newest = max(tokens, default=self.token)
        if newest < self.token:
            self.wrong.append("generation %s may save after %s" % (newest, self.token))
        self.token = max(newest, self.token)
        if step < self.latest[0]:
            self.wrong.append("'latest' goes back from step %d to %d" % (self.latest[0], step))
        if step != self.latest[0]:
            self.seen_latest += 1
            self.latest = (step, *self.token)

    def watch(self, until):
        while time.monotonic() < until:
            self.look()
            time.sleep(0.005)

    def farthest(self):
        return self.steps[-1][1] if self.steps else 0

    def published(self):
        return self.seen_latest

    def is_whole(self):
        """All hosts are in the newest generation, and it trains."""
        found = self.look()
        if len(found) < HOSTS:
            return None
        worlds = [world for world, _ in found]
        newest = max(worlds, key=lambda world: (world["term"], world["generation"]))
        processes = newest["processes"] + newest["waiting"]
        step = max((step for _, step in found), key=lambda step: (step[0], step[1]))
        same = all(world["term"] == newest["term"] and world["generation"] == newest["generation"] for world in worlds)
        if len(newest["members"]) != self.members or len(processes) < HOSTS or not same:
            return None
        return step[1] if step[0] == newest["generation"] and step[1] == self.farthest() else None

    def wait_until_whole(self):
        until, first = time.monotonic() + TO_COME_TOGETHER, None
        while time.monotonic() < until:
            step = self.is_whole()
            if step is None:
                first = None
            elif first is None:
                first = step
            elif step >= first + 3:
                return
            for host in self.hosts:
                if not host.running():
                    raise SystemExit("the launcher of host %d has ended with %d:\n%s" %
                                     (host.number, host.process.returncode, host.text()[-4000:]))
            time.sleep(0.005)
        raise SystemExit("the hosts do not come together: %s" % [host.seen() for host in self.hosts])

    def stalled(self, since):
        """The time since then in which the run did not come farther, beyond what its steps take."""
        times = [at for at, _ in self.steps]
        gaps = [(b - a, b) for a, b in zip(times, times[1:])]
        usual = 3 * statistics.median([gap for gap, _ in gaps[-2000:]]) + 0.05
        return sum(gap - usual / 3 for gap, end in gaps if end > since and gap > usual)

    def launchers_memory(self):
        return {host.process.pid: resident(host.process.pid) for host in self.hosts}

    def launchers_growth(self, before):
        now = self.launchers_memory()
        return max((now[pid] - before[pid] for pid in now if pid in before), default=0.0)

    def end(self):
        """Interrupts all launchers, as people would. The step that is saved."""
        for host in self.hosts:
            host.process.send_signal(signal.SIGTERM)
        for host in self.hosts:
            code = host.process.wait(120)
            if code != 130:
                self.wrong.append("the launcher of host %d has ended with %d:\n%s" %
                                  (host.number, code, host.text()[-3000:]))
        self.look_at_checkpoints()
        return self.latest[0]

    def faults(self, saved, sizes):
        rows = [int(row.split(",")[0]) for row in losses(self.folder, self.name)]
        expected = [24 * (step + 1) for step in range(saved)]
        if rows != expected:
            first = next((i for i, (a, b) in enumerate(zip(rows, expected)) if a != b), min(len(rows), len(expected)))
            self.wrong.append("the losses have %d rows of %d, the first that is wrong is row %d: %s" %
                              (len(rows), len(expected), first, rows[max(0, first - 2):first + 3]))
        if self.wrong:
            print("\n".join("--- host %d\n%s" % (host.number, host.text()[-6000:]) for host in self.hosts))
        return self.wrong


def resident(pid):
    with open("/proc/%d/status" % pid) as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024


def straight_run(build, folder, name, steps):
    """What differs from a run of two processes on one host that nobody disturbs; empty: nothing."""
    straight = name + "-straight"
    configuration(folder, straight, every=5, layers=2, width=32, sequence=16)
    undisturbed = ElasticRun(build, folder, ["--elastic", "2:2"], [
        "--config", straight + ".json", "--steps", str(steps), "--save", straight + "-ck"])
    if undisturbed.process.wait(1800) != 0:
        return "the undisturbed run has failed:\n" + undisturbed.text()[-3000:]
    if losses(folder, name) != losses(folder, straight):
        return "the losses differ from those of an undisturbed run"
    files = glob.glob(os.path.join(folder, straight + "-ck", "global_step%d" % steps, "**/*.safetensors"), recursive=True)
    for path in files:
        other = path.replace(straight + "-ck", name + "-ck")
        if not os.path.exists(other) or not filecmp.cmp(path, other, shallow=False):
            return "%s differs from that of an undisturbed run" % os.path.basename(path)
    return "" if files else "the undisturbed run has saved nothing"
