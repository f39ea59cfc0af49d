// Gives programs of this host the address of a backend when they connect to a virtual address, and the virtual address when
// they ask who is at the other end. See docs/connect.md.
//
// Only the kernel's stable interface is used, so one object runs on every kernel. The stack is written in words of 8 bytes
// alone: without CAP_PERFMON, kernels before 6.9 refuse to write a part of what they take for a saved register. Go's side of
// the types is in maps.go.
#include <linux/bpf.h>
#include <linux/in.h>

#define SEC(name) __attribute__((section(name), used))
#define inline inline __attribute__((always_inline))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*update)(void *map, const void *key, const void *value, __u64 flags) = (void *)BPF_FUNC_map_update_elem;
static __u64 (*now)(void) = (void *)BPF_FUNC_ktime_get_ns;
static __u32 (*random)(void) = (void *)BPF_FUNC_get_prandom_u32;
static __u64 (*socket_cookie)(void *ctx) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*namespace_cookie)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;
static void *(*storage)(void *map, void *sk, void *value, __u64 flags) = (void *)BPF_FUNC_sk_storage_get;
static long (*forget)(void *map, void *sk) = (void *)BPF_FUNC_sk_storage_delete;
static struct bpf_sock *(*find_tcp)(void *ctx, struct bpf_sock_tuple *t, __u32 size, __u64 netns, __u64 flags) = (void *)BPF_FUNC_sk_lookup_tcp;
static struct bpf_sock *(*find_udp)(void *ctx, struct bpf_sock_tuple *t, __u32 size, __u64 netns, __u64 flags) = (void *)BPF_FUNC_sk_lookup_udp;
static long (*release)(void *sk) = (void *)BPF_FUNC_sk_release;

// An address, IPv4 as IPv4-mapped, in the order of the network, with a port in the order of the host.
struct place {
	__u64 addr[2];
	__u64 port;
};

// A frontend. Rest has its port, from bit 16 the last port of a range, from bit 32 the protocol, from bit 40 the audience.
struct frontend {
	__u64 addr[2];
	__u64 rest;
};

#define PROTOCOL 32
#define INTERNAL (1ull << 40)
#define REVERSE (1ull << 63) // of the keys in sessions

// How a frontend is served. Without slots, it is left to the dataplane. Tables are immutable: a change has another number.
struct service {
	__u32 table;
	__u32 slots;
	__u64 affinity; // in nanoseconds; 0: none
	__u32 node_port; // whether it is one
	__u32 settings;	 // of Go alone
};

// The number of a table, and from bit 32 which of its groups of slots: fewer entries of the map are faster to write.
typedef __u64 group;

#define GROUP 16

struct slots {
	struct place at[GROUP];
};

// A backend of a table. Rest has its port, and from bit 32 the number of the table.
struct backend {
	__u64 addr[2];
	__u64 rest;
};

// A counter of connections. A backend of zeros stands for all of the frontend.
struct counter {
	struct frontend frontend;
	struct place backend;
};

// What a connected socket is for.
struct note {
	struct counter balanced;
	struct place asked; // what the program has connected to
};

struct affinity {
	struct place backend;
	__u64 until;
};

// What a UDP socket is for: a frontend that it sends to without a connection, or, with REVERSE, a backend that answers it.
struct session {
	__u64 cookie;
	struct frontend to;
};

// The backend of the frontend; with REVERSE, what the program has asked, and the frontend that serves this.
struct partner {
	struct place at;
	struct frontend frontend;
};

#define MAP(name, kind, of, to, entries, flags)                                                                        \
	struct {                                                                                                       \
		__uint(type, kind);                                                                                    \
		__type(key, of);                                                                                       \
		__type(value, to);                                                                                     \
		__uint(max_entries, entries);                                                                          \
		__uint(map_flags, flags);                                                                              \
	} name SEC(".maps")

// The kernel needs 16 bytes for each possible entry at once, and those of sessions whole: 20 MiB together.
MAP(services, BPF_MAP_TYPE_HASH, struct frontend, struct service, 1 << 17, BPF_F_NO_PREALLOC);
MAP(slots, BPF_MAP_TYPE_HASH, group, struct slots, 1 << 17, BPF_F_NO_PREALLOC);
MAP(backends, BPF_MAP_TYPE_HASH, struct backend, __u32, 1 << 18, BPF_F_NO_PREALLOC); // to the weight
MAP(counters, BPF_MAP_TYPE_HASH, struct counter, __u64, 1 << 18, BPF_F_NO_PREALLOC);
MAP(affinities, BPF_MAP_TYPE_HASH, struct frontend, struct affinity, 1 << 16, BPF_F_NO_PREALLOC);
MAP(sessions, BPF_MAP_TYPE_LRU_HASH, struct session, struct partner, 1 << 15, 0);
// Of each socket that was connected by us: it ends with the socket.
MAP(connected, BPF_MAP_TYPE_SK_STORAGE, int, struct note, 0, BPF_F_NO_PREALLOC);
// The address of this host whose node ports are those of its loopback addresses, of IPv4 and of IPv6; zeros: there are none.
MAP(host, BPF_MAP_TYPE_ARRAY, __u32, struct place, 2, 0);

// The clients that are served: programs of this network namespace, or of all.
volatile const __u64 namespace;
volatile const __u64 all_namespaces;

static inline struct place read4(struct bpf_sock_addr *ctx)
{
	struct place p = {{0, 0xffff0000ull | (__u64)ctx->user_ip4 << 32}, __builtin_bswap16(ctx->user_port)};
	return p;
}

static inline struct place read6(struct bpf_sock_addr *ctx)
{
	struct place p = {{ctx->user_ip6[0] | (__u64)ctx->user_ip6[1] << 32, ctx->user_ip6[2] | (__u64)ctx->user_ip6[3] << 32},
			  __builtin_bswap16(ctx->user_port)};
	return p;
}

static inline void write4(struct bpf_sock_addr *ctx, const struct place *p)
{
	ctx->user_ip4 = p->addr[1] >> 32;
	ctx->user_port = __builtin_bswap16(p->port);
}

static inline void write6(struct bpf_sock_addr *ctx, const struct place *p)
{
	ctx->user_ip6[0] = p->addr[0];
	ctx->user_ip6[1] = p->addr[0] >> 32;
	ctx->user_ip6[2] = p->addr[1];
	ctx->user_ip6[3] = p->addr[1] >> 32;
	ctx->user_port = __builtin_bswap16(p->port);
}

// A client with an address of its own choice is left to the dataplane: a backend may not have a way back to it.
static inline int bound(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	return sk->src_ip4 || sk->src_ip6[0] || sk->src_ip6[1] || sk->src_ip6[2] || sk->src_ip6[3];
}

static inline void count_one(struct counter *c)
{
	__u64 one = 1, *n = lookup(&counters, c);
	if (n)
		__sync_fetch_and_add(n, 1);
	else
		update(&counters, c, &one, BPF_NOEXIST);
}

static inline void count(const struct counter *c)
{
	struct counter total = {c->frontend, {{0, 0}, 0}}, one = *c;
	count_one(&one);
	count_one(&total);
}

// Usable says whether a backend takes new clients.
static inline int usable(const struct service *s, const struct place *p)
{
	struct backend b = {{p->addr[0], p->addr[1]}, p->port | (__u64)s->table << 32};
	__u32 *weight = lookup(&backends, &b);
	return weight && *weight;
}

// Served returns how the frontend at a place is served for programs of this host, or null.
static inline struct service *served(struct bpf_sock_addr *ctx, const struct place *at, struct frontend *f)
{
	struct service *s;
	f->addr[0] = at->addr[0];
	f->addr[1] = at->addr[1];
	f->rest = at->port | (__u64)ctx->protocol << PROTOCOL | INTERNAL;
	s = lookup(&services, f);
	if (!s) {
		f->rest &= ~INTERNAL;
		s = lookup(&services, f);
	}
	return s;
}

// Foreign says whether a client is in another namespace, such as a container, whose loopback addresses are its own.
static inline int foreign(struct bpf_sock_addr *ctx)
{
	return namespace_cookie(ctx) != namespace;
}

#define LOOPBACK4 0x0100007fffff0000ull
#define LOOPBACK6 0x0100000000000000ull

// Taken says whether a program of the host listens at a loopback address, which is then its own.
static inline int taken(struct bpf_sock_addr *ctx, const struct place *at, int six)
{
	__u64 from = ctx->protocol == IPPROTO_UDP ? ctx->sk->src_port : 0; // a connected socket of UDP has its peer's datagrams alone
	__u64 ports = __builtin_bswap16(from) | (__u64)__builtin_bswap16(at->port) << 16;
	// In words, a bpf_sock_tuple: the address as source and as destination, and both ports.
	__u64 four = at->addr[1] >> 32, tuple4[] = {four | four << 32, ports}, tuple6[] = {0, at->addr[1], 0, at->addr[1], ports};
	struct bpf_sock_tuple *t = six ? (void *)tuple6 : (void *)tuple4;
	__u32 size = six ? sizeof(t->ipv6) : sizeof(t->ipv4);
	struct bpf_sock *sk = ctx->protocol == IPPROTO_TCP ? find_tcp(ctx, t, size, BPF_F_CURRENT_NETNS, 0) : find_udp(ctx, t, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 0;
	release(sk);
	return 1;
}

// Node_port returns how a loopback address is served: as a node port of the host, unless a program listens there.
static inline struct service *node_port(struct bpf_sock_addr *ctx, const struct place *to, struct frontend *f)
{
	__u64 six = to->addr[1] == LOOPBACK6;
	struct place at, *own;
	struct service *s;
	if (to->addr[0] || (!six && to->addr[1] != LOOPBACK4))
		return 0;
	own = lookup(&host, &six);
	if (!own || foreign(ctx))
		return 0;
	at = *own;
	at.port = to->port;
	s = served(ctx, &at, f);
	return s && s->node_port && !taken(ctx, to, six) ? s : 0;
}

// Find returns how a client at a place is served, or null.
static inline struct service *find(struct bpf_sock_addr *ctx, const struct place *to, struct frontend *f)
{
	struct service *s;
	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return 0;
	s = served(ctx, to, f);
	if (!s)
		s = node_port(ctx, to, f);
	return s && s->slots && (all_namespaces || !foreign(ctx)) && !bound(ctx) ? s : 0;
}

// Choose finds a backend for a new client, unless it is at a loopback address of another namespace.
static inline int choose(struct bpf_sock_addr *ctx, const struct service *s, const struct frontend *f, struct place *out)
{
	struct affinity a, *had = 0;
	if (s->affinity && (had = lookup(&affinities, f)) && had->until > now() && usable(s, &had->backend)) {
		*out = had->backend;
	} else {
		__u32 i = random() % s->slots;
		group of = s->table | (__u64)(i / GROUP) << 32;
		struct slots *found = lookup(&slots, &of);
		if (!found) // removed meanwhile
			return 0;
		*out = found->at[i % GROUP];
	}
	if (foreign(ctx) && !out->addr[0] && ((out->addr[1] & 0xffffffffffull) == 0x7fffff0000ull || out->addr[1] == LOOPBACK6))
		return 0;
	if (s->affinity) {
		a.backend = *out;
		a.until = now() + s->affinity;
		update(&affinities, f, &a, BPF_ANY);
	}
	return 1;
}

// Answers returns the key of what a backend sends to a UDP socket.
static inline struct session answers(struct bpf_sock_addr *ctx, const struct place *from)
{
	struct session key = {socket_cookie(ctx), {{from->addr[0], from->addr[1]}, from->port | REVERSE}};
	return key;
}

// Connect replaces the place to which a socket connects, and reports whether it has.
static inline int connect(struct bpf_sock_addr *ctx, struct place *to)
{
	struct note n = {.asked = *to}, *stored = 0;
	struct counter *c = &n.balanced;
	struct service *s = find(ctx, to, &c->frontend);
	if (s && choose(ctx, s, &c->frontend, &c->backend))
		stored = storage(&connected, ctx->sk, &n, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored) {
		forget(&connected, ctx->sk); // a UDP socket may be connected again
		return 0;
	}
	*stored = n; // what was there is of an earlier connection
	if (ctx->protocol == IPPROTO_UDP) { // whose notes the kernel doesn't list
		struct session key = answers(ctx, &c->backend);
		struct partner asked = {*to, c->frontend};
		update(&sessions, &key, &asked, BPF_ANY);
	}
	count(c);
	*to = c->backend;
	return 1;
}

static inline int same(const struct place *a, const struct place *b)
{
	return a->addr[0] == b->addr[0] && a->addr[1] == b->addr[1] && a->port == b->port;
}

// Send replaces the place to which a UDP socket sends a datagram, and reports whether it has. All datagrams of a socket to a
// frontend go to one backend while that is usable.
static inline int send(struct bpf_sock_addr *ctx, struct place *to)
{
	struct counter c;
	struct service *s = find(ctx, to, &c.frontend);
	if (!s)
		return 0;
	struct session key = {socket_cookie(ctx), c.frontend}, back;
	struct partner *had = lookup(&sessions, &key), *vip, with = {*to, c.frontend};
	int fresh = !had || !usable(s, &had->at);
	if (!fresh)
		c.backend = had->at;
	else if (!choose(ctx, s, &c.frontend, &c.backend))
		return 0;
	back = answers(ctx, &c.backend);
	vip = lookup(&sessions, &back);
	if (!vip)
		update(&sessions, &back, &with, BPF_ANY);
	else if (!same(&vip->at, to))
		return 0; // the backend serves two frontends, and its answers would be taken for those of one of them
	if (fresh) {
		with.at = c.backend;
		update(&sessions, &key, &with, BPF_ANY);
		count(&c);
	}
	*to = c.backend;
	return 1;
}

// Peer replaces a backend by the place to which the socket has connected, and reports whether it has.
static inline int peer(struct bpf_sock_addr *ctx, struct place *from)
{
	struct note *n = storage(&connected, ctx->sk, 0, 0);
	if (!n || !same(&n->balanced.backend, from))
		return 0;
	*from = n->asked;
	return 1;
}

// Receive is peer for a datagram, whose sender may have been asked without a connection.
static inline int receive(struct bpf_sock_addr *ctx, struct place *from)
{
	if (peer(ctx, from))
		return 1;
	struct session key = answers(ctx, from);
	struct partner *vip = lookup(&sessions, &key);
	if (!vip)
		return 0;
	*from = vip->at;
	return 1;
}

// Each program lets the call go on, with another address or the same one.
#define PROGRAM(section, name, family, replace)                                                                        \
	SEC(section) int name(struct bpf_sock_addr *ctx)                                                               \
	{                                                                                                              \
		struct place p = read##family(ctx);                                                                    \
		if (replace(ctx, &p))                                                                                  \
			write##family(ctx, &p);                                                                        \
		return 1;                                                                                              \
	}

#define SEND(section, name, family)                                                                                    \
	SEC(section) int name(struct bpf_sock_addr *ctx)                                                               \
	{                                                                                                              \
		struct place p = read##family(ctx);                                                                    \
		if (!sender##family(ctx) && send(ctx, &p))                                                             \
			write##family(ctx, &p);                                                                        \
		return 1;                                                                                              \
	}

// Whether a datagram has an address of the program's choice.
static inline int sender4(struct bpf_sock_addr *ctx)
{
	return ctx->msg_src_ip4 != 0;
}

static inline int sender6(struct bpf_sock_addr *ctx)
{
	return ctx->msg_src_ip6[0] || ctx->msg_src_ip6[1] || ctx->msg_src_ip6[2] || ctx->msg_src_ip6[3];
}

PROGRAM("cgroup/connect4", connect4, 4, connect)
PROGRAM("cgroup/connect6", connect6, 6, connect)
PROGRAM("cgroup/recvmsg4", recvmsg4, 4, receive)
PROGRAM("cgroup/recvmsg6", recvmsg6, 6, receive)
PROGRAM("cgroup/getpeername4", getpeername4, 4, peer)
PROGRAM("cgroup/getpeername6", getpeername6, 6, peer)
SEND("cgroup/sendmsg4", sendmsg4, 4)
SEND("cgroup/sendmsg6", sendmsg6, 6)

char license_of_all[] SEC("license") = "Dual MIT/GPL";
