package statuswriter

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/test/expect"
)

func TestNextStep(t *testing.T) {
	vips := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	object := func(changes ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
		for _, change := range changes {
			change(s)
		}
		return s
	}
	held := func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, Finalizer) }
	foreign := func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, "example.com/other") }
	dying := func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
	plain := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }
	has := func(mode string, ips ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for _, ip := range ips {
				one := corev1.LoadBalancerIngress{IP: ip}
				if m := corev1.LoadBalancerIPMode(mode); mode != "" {
					one.IPMode = &m
				}
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, one)
			}
		}
	}
	families := func(list ...corev1.IPFamily) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.IPFamilies = list }
	}
	const four, six = "192.0.2.1", "2001:db8::1"
	for _, tc := range []struct {
		name    string
		in      situation
		want    step
		ingress string // the value that is written, if the step writes it
	}{
		{"nothing there", situation{}, stepNone, ""},
		{"gone while we held it", situation{written: written{held: true}}, stepLookUp, ""},

		{"ours, no answer yet", situation{service: object(), ours: true}, stepNone, ""},
		{"ours, no answer, reported before", situation{service: object(held, has("Proxy", four)), ours: true}, stepNone, ""},
		{"ours, new", situation{service: object(), ours: true, grant: grantSome, vips: vips(four)}, stepAddFinalizer, ""},
		{"ours, others' finalizer", situation{service: object(foreign), ours: true, grant: grantSome, vips: vips(four)}, stepAddFinalizer, ""},
		{"ours, finalizer there", situation{service: object(held), ours: true, grant: grantSome, vips: vips(four)}, stepWriteIngress, "[192.0.2.1]"},
		{"ours, all there", situation{service: object(held, has("Proxy", four)), ours: true, grant: grantSome, vips: vips(four)}, stepNone, ""},
		{"ours, finalizer taken away", situation{service: object(has("Proxy", four)), ours: true, grant: grantSome, vips: vips(four)}, stepAddFinalizer, ""},
		{"ours, other mode", situation{service: object(held, has("VIP", four)), ours: true, grant: grantSome, vips: vips(four)}, stepWriteIngress, "[192.0.2.1]"},
		{"ours, server without modes", situation{service: object(held, has("", four)), ours: true, grant: grantSome, vips: vips(four)}, stepNone, ""},
		{"ours, other address", situation{service: object(held, has("Proxy", "192.0.2.9")), ours: true, grant: grantSome, vips: vips(four)}, stepWriteIngress, "[192.0.2.1]"},
		{"ours, a name beside the address", situation{service: object(held, has("Proxy", four), func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].Hostname = "x" }),
			ours: true, grant: grantSome, vips: vips(four)}, stepWriteIngress, "[192.0.2.1]"},
		{"ours, one too many", situation{service: object(held, has("Proxy", four, six)), ours: true, grant: grantSome, vips: vips(four)}, stepWriteIngress, "[192.0.2.1]"},
		{"ours, both families", situation{service: object(held, families(corev1.IPv4Protocol, corev1.IPv6Protocol)), ours: true, grant: grantSome, vips: vips(four, six)},
			stepWriteIngress, "[192.0.2.1 2001:db8::1]"},
		{"ours, both families, IPv6 first", situation{service: object(held, families(corev1.IPv6Protocol, corev1.IPv4Protocol)), ours: true, grant: grantSome, vips: vips(four, six)},
			stepWriteIngress, "[2001:db8::1 192.0.2.1]"},
		{"ours, families in another order", situation{service: object(held, families(corev1.IPv6Protocol, corev1.IPv4Protocol), has("Proxy", four, six)), ours: true, grant: grantSome, vips: vips(four, six)},
			stepWriteIngress, "[2001:db8::1 192.0.2.1]"},
		{"ours, no VIP to be had", situation{service: object(), ours: true, grant: grantNone}, stepNone, ""},
		{"ours, no VIP any longer", situation{service: object(held, has("Proxy", four)), ours: true, grant: grantNone}, stepWriteIngress, "[]"},

		{"deleted, never held", situation{service: object(dying, foreign), ours: true}, stepNone, ""},
		{"deleted, served still", situation{service: object(dying, held, has("Proxy", four)), ours: true, written: written{held: true}, grant: grantSome, vips: vips(four)}, stepAwait, ""},
		{"deleted, withdrawn", situation{service: object(dying, held, has("Proxy", four)), ours: true, written: written{held: true}, withdrawn: true}, stepWriteIngress, "[]"},
		{"deleted, withdrawn, emptied", situation{service: object(dying, foreign, held), ours: true, written: written{held: true}, withdrawn: true}, stepRemoveFinalizer, ""},
		{"deleted before we looked, of our class", situation{service: object(dying, held), ours: true}, stepAwait, ""},

		{"a plain one", situation{service: object(plain)}, stepNone, ""},
		{"another's balancer", situation{service: object(has("VIP", four))}, stepNone, ""},
		{"not ours, whose is the finalizer", situation{service: object(held, has("VIP", four))}, stepLookUp, ""},
		{"not ours, nor the finalizer", situation{service: object(held, has("VIP", four)), written: written{notHeld: true}}, stepNone, ""},
		{"deleted, nor ours", situation{service: object(dying, held), written: written{notHeld: true}}, stepNone, ""},
		{"ours no longer, served still", situation{service: object(plain, held), written: written{held: true}}, stepAwait, ""},
		{"ours no longer, withdrawn", situation{service: object(plain, held), written: written{held: true}, withdrawn: true}, stepRemoveFinalizer, ""},
		{"ours no longer, reported still", situation{service: object(plain, held, has("Proxy", four)), written: written{held: true}, withdrawn: true}, stepWriteIngress, "[]"},
		{"another's now, with our VIP", situation{service: object(held, has("Proxy", four)), written: written{held: true, addrs: vips(four)}, withdrawn: true}, stepWriteIngress, "[]"},
		{"another's now, with its own", situation{service: object(held, has("Proxy", "198.51.100.1")), written: written{held: true, addrs: vips(four)}, withdrawn: true}, stepRemoveFinalizer, ""},
	} {
		tc.in.mode = corev1.LoadBalancerIPModeProxy
		got := tc.in.decide()
		expect.Equal(t, got, tc.want, "%s: step", tc.name)
		if tc.want != stepWriteIngress {
			continue
		}
		out := object()
		out.Status.LoadBalancer.Ingress = tc.in.ingress()
		expect.Equal(t, fmt.Sprint(addresses(out)), tc.ingress, "%s: writes", tc.name)
	}
}

func TestFinalizersOfOthersStay(t *testing.T) {
	for _, tc := range []struct{ has, with, without []string }{
		{nil, []string{Finalizer}, []string{}},
		{[]string{"a"}, []string{"a", Finalizer}, []string{"a"}},
		{[]string{"a", Finalizer, "b"}, nil, []string{"a", "b"}},
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Finalizers: tc.has}}
		if got := finalizersWith(s); tc.with != nil && !slices.Equal(got, tc.with) {
			t.Errorf("%q with ours: %q", tc.has, got)
		}
		if got := finalizersWithout(s); got == nil || !slices.Equal(got, tc.without) {
			t.Errorf("%q without ours: %q", tc.has, got)
		}
		expect.SameList(t, s.Finalizers, tc.has, "the object's own are %q now", s.Finalizers)
	}
}
