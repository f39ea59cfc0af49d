// Package keepalived converts a keepalived.conf.
//
// virtual_server blocks become services, real_server blocks their backends, and the checks of the
// real servers the service's check. The addresses of vrrp_instance blocks become addresses of a pool
// that is announced at layer 2, and their scripts become hooks. Every line that has no equivalent becomes a note.
//
// Files:
//
//	tree.go      the text as a tree of statements, with includes, definitions and conditions
//	convert.go   what is at the top level, and notes
//	virtual.go   virtual_server and real_server
//	check.go     the checks of a real_server
//	vrrp.go      vrrp_instance
//	notify.go    the scripts of vrrp_instance and vrrp_sync_group
package keepalived
