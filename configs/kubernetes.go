package configs

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// KubernetesCluster is what a source of type kubernetes says of its cluster.
type KubernetesCluster struct {
	// Kubeconfig is absolute, or begins with Credentials; "" with InCluster.
	Kubeconfig        string   `toml:"kubeconfig"`
	Context           string   `toml:"context"`             // of the kubeconfig; "" is its current one
	InCluster         bool     `toml:"in_cluster"`          // this host's agent runs in a pod, and is asked as that
	LoadBalancerClass string   `toml:"load_balancer_class"` // of Services that are ours; "" with AdoptClusterIPs
	Classless         bool     `toml:"classless"`           // also those of type LoadBalancer without a class
	Namespaces        []string `toml:"namespaces"`          // empty is all
	Selector          string   `toml:"selector"`            // of labels; "" is all
	AdoptClusterIPs   bool     `toml:"adopt_cluster_ips"`   // mirror ClusterIPs instead, and write nothing
	Backends          string   `toml:"backends"`            // BackendsEndpoints or BackendsNodePorts
	IPMode            string   `toml:"ip_mode"`             // IPModeProxy or IPModeVIP; "" with AdoptClusterIPs, as the rest
	LeaseNamespace    string   `toml:"lease_namespace"`     // where the Lease is that elects the writer
	LeaseName         string   `toml:"lease_name"`
}

// What the backends of a Kubernetes Service are.
const (
	BackendsEndpoints = "endpoints"  // its pods
	BackendsNodePorts = "node-ports" // its node port on every node
)

// What other proxies of the cluster are told of a VIP: status.loadBalancer.ingress[].ipMode.
const (
	IPModeProxy = "proxy" // pods reach it here, too
	IPModeVIP   = "vip"   // pods' traffic to it stays on their node
)

// Defaults of sources of type kubernetes.
const (
	DefaultLoadBalancerClass = "ironvip.io/vip"
	DefaultLeaseNamespace    = "ironvip" // as configs/kubernetes makes it
	DefaultLeaseName         = "ironvip"
)

// kubernetesSource checks a source of type kubernetes and fills in its defaults.
func (v *validator) kubernetesSource(field string, s *Source) {
	at := func(key string) string { return strict.Join(field, key) }
	k := &s.KubernetesCluster
	switch {
	case k.InCluster && k.Kubeconfig != "":
		v.bad(at("kubeconfig"), "keep one of the two", "in_cluster is set at %s: the agent's pod says whom to ask", v.where(at("in_cluster")))
	case !k.InCluster && k.Kubeconfig == "":
		v.bad(at("kubeconfig"), `add kubeconfig = "/etc/ironvip/kubeconfig", or in_cluster = true where the agent runs in a pod`, "a kubernetes source needs to know whom to ask")
	}
	k.Kubeconfig = v.file(at("kubeconfig"), k.Kubeconfig)
	v.word(at("context"), k.Context)
	if k.InCluster && k.Context != "" {
		v.bad(at("context"), "remove it", "is one of a kubeconfig, and in_cluster uses none")
	}
	v.namespaces(at("namespaces"), k.Namespaces)
	if err := checkSelector(k.Selector); err != nil {
		v.bad(at("selector"), `write it as kubectl's -l takes it: "app=web,tier in (front, edge),!internal"`, "%s", err)
	}
	v.pool(at("pool"), s.Pool)
	v.shrinkGuard(field, s)
	k.Backends = cmp.Or(k.Backends, BackendsEndpoints)
	v.choice(at("backends"), k.Backends, BackendsEndpoints, BackendsNodePorts)
	if k.AdoptClusterIPs {
		v.adopting(at, k)
		return
	}
	k.LoadBalancerClass = cmp.Or(k.LoadBalancerClass, DefaultLoadBalancerClass)
	if !isQualifiedName(k.LoadBalancerClass) {
		v.bad(at("load_balancer_class"), fmt.Sprintf("use %q, or another name in a domain of yours", DefaultLoadBalancerClass),
			"%s is not a load balancer class: a name, or a DNS name, / and a name", strict.Quote(k.LoadBalancerClass))
	}
	k.IPMode = cmp.Or(k.IPMode, IPModeProxy)
	v.choice(at("ip_mode"), k.IPMode, IPModeProxy, IPModeVIP)
	k.LeaseNamespace, k.LeaseName = cmp.Or(k.LeaseNamespace, DefaultLeaseNamespace), cmp.Or(k.LeaseName, DefaultLeaseName)
	v.label(at("lease_namespace"), k.LeaseNamespace)
	if !isSubdomain(k.LeaseName) {
		v.bad(at("lease_name"), fmt.Sprintf("use %q", DefaultLeaseName), "%s is not a name for a Lease: up to 253 of a-z, 0-9, inner - and .", strict.Quote(k.LeaseName))
	}
	v.ownLease(field, s)
}

// adopting refuses what has no meaning where ClusterIPs are mirrored.
func (v *validator) adopting(at func(string) string, k *KubernetesCluster) {
	adopts := func(key, why string) {
		v.bad(at(key), "remove one of the two", "%s, and adopt_cluster_ips is set at %s", why, v.where(at("adopt_cluster_ips")))
	}
	if k.LoadBalancerClass != "" {
		adopts("load_balancer_class", "is for Services of type LoadBalancer")
	}
	if k.Classless {
		adopts("classless", "is for Services of type LoadBalancer")
	}
	if k.Backends == BackendsNodePorts {
		adopts("backends", "Services with a ClusterIP need not have node ports")
	}
	for _, key := range []struct{ name, text string }{{"ip_mode", k.IPMode}, {"lease_namespace", k.LeaseNamespace}, {"lease_name", k.LeaseName}} {
		if key.text != "" {
			adopts(key.name, "is for what is written into the cluster")
		}
	}
}

// ownLease refuses two sources that would write for one cluster by one Lease:
// each would take the other's election for its own.
func (v *validator) ownLease(field string, s *Source) {
	for i := range v.config.Sources {
		o := &v.config.Sources[i]
		if o == s {
			return
		}
		if o.Type == SourceKubernetes && !o.AdoptClusterIPs && o.Kubeconfig == s.Kubeconfig && o.Context == s.Context && o.InCluster == s.InCluster &&
			o.LeaseNamespace == s.LeaseNamespace && o.LeaseName == s.LeaseName {
			v.bad(strict.Join(field, "lease_name"), "give each source of one cluster a lease_name of its own",
				"%q is the Lease of the source at %s, too", s.LeaseNamespace+"/"+s.LeaseName, v.where(strict.Index("source", i)))
			return
		}
	}
}

func (v *validator) namespaces(field string, names []string) {
	for i, name := range names {
		at := strict.Index(field, i)
		v.label(at, name)
		if slices.Contains(names[:i], name) {
			v.bad(at, "remove it", "%s is there twice", strict.Quote(name))
		}
	}
}

func (v *validator) label(field, name string) {
	if err := vip.CheckLabel(name); err != nil {
		v.bad(field, `use 1 to 63 of a-z, 0-9 and inner "-"`, "%s", err)
	}
}

// The names of Kubernetes, as its API server takes them.
var (
	plainName  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`)
	subdomains = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
)

func isSubdomain(s string) bool { return len(s) <= 253 && subdomains.MatchString(s) }

// isQualifiedName reports whether s is "name" or "domain/name".
func isQualifiedName(s string) bool {
	domain, name, qualified := strings.Cut(s, "/")
	if !qualified {
		return plainName.MatchString(s)
	}
	return isSubdomain(domain) && plainName.MatchString(name)
}

// selectorTerm is one term of a label selector: a key alone, with ! before it,
// with = or == or != and a value, with in or notin and values in brackets, or
// with < or > and a number.
var selectorTerm = regexp.MustCompile(`^(?:(!)\s*)?([^\s!=<>(),]+)(?:\s*(==|=|!=|<|>)\s*([^\s!=<>(),]*)|\s+(in|notin)\s*\(([^()]*)\))?$`)

// checkSelector says what is wrong with a label selector. It takes what
// Kubernetes' own parser takes, apart from spaces inside of words, and is here so
// that configurations are checked alike in every build.
func checkSelector(text string) error {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	for _, term := range splitTerms(text) {
		m := selectorTerm.FindStringSubmatch(strings.TrimSpace(term))
		if m == nil {
			return fmt.Errorf("%s is not a term of a label selector", strict.Quote(strings.TrimSpace(term)))
		}
		not, key, operator, value, set, values := m[1], m[2], m[3], m[4], m[5], m[6]
		switch {
		case not != "" && operator+set != "":
			return fmt.Errorf("%s has ! before a key and a condition after it", strict.Quote(strings.TrimSpace(term)))
		case !isQualifiedName(key):
			return fmt.Errorf("%s is not a label's key", strict.Quote(key))
		case operator == "<" || operator == ">":
			if !integer.MatchString(value) {
				return fmt.Errorf("%s is not a number", strict.Quote(value))
			}
		}
		for _, one := range append(strings.Split(values, ","), value) {
			if one = strings.TrimSpace(one); one != "" && !plainName.MatchString(one) {
				return fmt.Errorf("%s is not a label's value", strict.Quote(one))
			}
		}
	}
	return nil
}

var integer = regexp.MustCompile(`^[0-9]{1,18}$`)

// splitTerms splits a selector at the commas outside of brackets.
func splitTerms(text string) []string {
	var terms []string
	depth, start := 0, 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				terms = append(terms, text[start:i])
				start = i + 1
			}
		}
	}
	return append(terms, text[start:])
}
