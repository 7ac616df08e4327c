module selvage.test/pion

go 1.21

require github.com/pion/webrtc/v2 v2.0.7

require (
	github.com/cheekybits/genny v1.0.0 // indirect
	github.com/lucas-clemente/quic-go v0.7.1-0.20190401152353-907071221cf9 // indirect
	github.com/marten-seemann/qtls v0.2.3 // indirect
	github.com/pion/datachannel v1.3.0 // indirect
	github.com/pion/dtls v1.3.3 // indirect
	github.com/pion/ice v0.2.1 // indirect
	github.com/pion/logging v0.2.1 // indirect
	github.com/pion/quic v0.1.1 // indirect
	github.com/pion/rtcp v1.2.0 // indirect
	github.com/pion/rtp v1.1.1 // indirect
	github.com/pion/sctp v1.5.0 // indirect
	github.com/pion/sdp/v2 v2.1.1 // indirect
	github.com/pion/srtp v1.2.3 // indirect
	github.com/pion/stun v0.2.1 // indirect
	github.com/pion/transport v0.6.0 // indirect
	github.com/pkg/errors v0.8.1 // indirect
	golang.org/x/crypto v0.0.0-20190404164418-38d8ce5564a5 // indirect
	golang.org/x/sys v0.0.0-20190403152447-81d4e9dc473e // indirect
)
