// Package kubevm runs the scenarios of test/program that need a real Kubernetes API and a real IPVS
// at the same time: kube-apiserver is too slow in an emulated machine, and many hosts' kernels have
// no IPVS.
//
// Its test, with the build tag system, starts etcd and kube-apiserver on this host for each
// scenario. It lends them (test/kubetest) to test/program's test binary in the VM (test/vm), which
// reaches them by their ports and controls the cluster, the agent and the traffic. Its input is the
// binary of IRONVIP_BIN. It exports nothing.
package kubevm
