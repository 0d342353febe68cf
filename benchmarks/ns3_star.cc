// The star of the simulator benchmark, in ns-3: the peer that people know.
//
// `hosts` hosts hang on one hub by full-duplex links of 100 Gbit/s and 1 us. Host i sends packets of 1000
// bytes of payload to host (i + 1) % hosts through the hub, at a pace just below the link's rate, so that
// every link stays busy and no queue overflows. Two modes:
//
//   udp   hosts with ns-3's UDP/IP stack, the hub is a router that forwards by IP (static routes; no queue
//         discipline above the devices, no checksums: the stack at its leanest);
//   bare  no stack: devices alone, the hub's receive callback sends the packet out of the next port.
//
// Only Simulator::Run is timed. One line of JSON goes to standard output:
//   {"mode", "hosts", "sent", "forwarded", "delivered", "wall_s", "packets_per_s", "events"}
// `forwarded` counts the packets that the hub put on a wire. Nothing leaves the process.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint32_t PAYLOAD_BYTES = 1000;
constexpr uint64_t BURST = 32;
constexpr uint16_t PORT = 9;
constexpr uint16_t PROTOCOL = 0x0800; // PPP devices carry only protocols that they can name; this is IPv4's.

uint64_t g_sent = 0;
uint64_t g_forwarded = 0;
uint64_t g_delivered = 0;

struct Link
{
    Ptr<PointToPointNetDevice> host;
    Ptr<PointToPointNetDevice> hub;
};

// A burst at a time until the host has sent its share: the device's queue (100 packets) takes a burst and is
// empty just before the next, and one event serves the whole burst.
class Source
{
  public:
    Source(std::function<void(Ptr<Packet>)> send, uint64_t packets, Time pace)
        : m_send(std::move(send)),
          m_left(packets),
          m_pace(pace)
    {
    }

    void Tick()
    {
        uint64_t burst = std::min(BURST, m_left);
        for (uint64_t i = 0; i < burst; ++i)
        {
            m_send(Create<Packet>(PAYLOAD_BYTES));
        }
        g_sent += burst;
        m_left -= burst;
        if (m_left > 0)
        {
            Simulator::Schedule(m_pace * static_cast<int64_t>(BURST), &Source::Tick, this);
        }
    }

  private:
    std::function<void(Ptr<Packet>)> m_send;
    uint64_t m_left;
    Time m_pace;
};

using Sources = std::vector<std::unique_ptr<Source>>;

void
CountHubTransmission(Ptr<const Packet>)
{
    ++g_forwarded;
}

void
DrainSocket(Ptr<Socket> socket)
{
    while (socket->Recv())
    {
        ++g_delivered;
    }
}

std::vector<Link>
BuildStar(NodeContainer& hosts, Ptr<Node> hub)
{
    PointToPointHelper wire;
    wire.SetDeviceAttribute("DataRate", StringValue("100Gbps"));
    wire.SetDeviceAttribute("Mtu", UintegerValue(1500));
    wire.SetChannelAttribute("Delay", StringValue("1us"));
    std::vector<Link> links;
    for (uint32_t i = 0; i < hosts.GetN(); ++i)
    {
        NetDeviceContainer ends = wire.Install(hosts.Get(i), hub);
        links.push_back({DynamicCast<PointToPointNetDevice>(ends.Get(0)),
                         DynamicCast<PointToPointNetDevice>(ends.Get(1))});
        links.back().hub->TraceConnectWithoutContext("PhyTxBegin", MakeCallback(&CountHubTransmission));
    }
    return links;
}

void
SetUpUdp(NodeContainer& hosts, Ptr<Node> hub, std::vector<Link>& links, uint64_t each, Time pace, Sources& out)
{
    Ipv4StaticRoutingHelper routing;
    InternetStackHelper stack;
    stack.SetRoutingHelper(routing);
    stack.SetIpv6StackInstall(false);
    stack.Install(hosts);
    stack.Install(hub);
    Ipv4AddressHelper network("10.0.0.0", "255.255.255.252");
    std::vector<Ipv4Address> addresses;
    TrafficControlHelper disciplines;
    for (auto& link : links)
    {
        NetDeviceContainer ends;
        ends.Add(link.host);
        ends.Add(link.hub);
        Ipv4InterfaceContainer given = network.Assign(ends);
        disciplines.Uninstall(ends);
        network.NewNetwork();
        addresses.push_back(given.GetAddress(0));
        auto ipv4 = link.host->GetNode()->GetObject<Ipv4>();
        routing.GetStaticRouting(ipv4)->SetDefaultRoute(given.GetAddress(1), ipv4->GetInterfaceForDevice(link.host));
    }
    for (uint32_t i = 0; i < hosts.GetN(); ++i)
    {
        auto sink = Socket::CreateSocket(hosts.Get(i), UdpSocketFactory::GetTypeId());
        sink->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
        sink->SetRecvCallback(MakeCallback(&DrainSocket));
        auto socket = Socket::CreateSocket(hosts.Get(i), UdpSocketFactory::GetTypeId());
        socket->Connect(InetSocketAddress(addresses[(i + 1) % hosts.GetN()], PORT));
        out.push_back(std::make_unique<Source>([socket](Ptr<Packet> packet) { socket->Send(packet); }, each, pace));
    }
}

bool
CountDelivery(Ptr<NetDevice>, Ptr<const Packet>, uint16_t, const Address&)
{
    ++g_delivered;
    return true;
}

bool
ForwardTo(Ptr<PointToPointNetDevice> next, Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&)
{
    return next->Send(packet->Copy(), next->GetBroadcast(), PROTOCOL);
}

void
SetUpBare(std::vector<Link>& links, uint64_t each, Time pace, Sources& out)
{
    for (size_t i = 0; i < links.size(); ++i)
    {
        auto next = links[(i + 1) % links.size()].hub;
        links[i].hub->SetReceiveCallback(MakeBoundCallback(&ForwardTo, next));
        links[i].host->SetReceiveCallback(MakeCallback(&CountDelivery));
        auto device = links[i].host;
        out.push_back(std::make_unique<Source>(
            [device](Ptr<Packet> packet) { device->Send(packet, device->GetBroadcast(), PROTOCOL); },
            each,
            pace));
    }
}

} // namespace

int
main(int argc, char* argv[])
{
    std::string mode = "udp";
    uint32_t count = 64;
    uint64_t packets = 100000;
    CommandLine arguments(__FILE__);
    arguments.AddValue("mode", "udp or bare", mode);
    arguments.AddValue("hosts", "hosts of the star", count);
    arguments.AddValue("packets", "packets to send, over all hosts", packets);
    arguments.Parse(argc, argv);
    if ((mode != "udp" && mode != "bare") || count < 2 || count > 4096 || packets < count)
    {
        std::cerr << "want --mode=udp|bare, 2..4096 hosts and a packet or more a host\n";
        return 2;
    }

    NodeContainer hosts(count);
    Ptr<Node> hub = CreateObject<Node>();
    std::vector<Link> links = BuildStar(hosts, hub);
    uint64_t each = packets / count;
    // 1000 bytes, 28 of UDP/IP and 2 of PPP take 82.4 ns at 100 Gbit/s; without UDP/IP, 80.16 ns.
    Time pace = NanoSeconds(mode == "udp" ? 83 : 81);
    Sources sources;
    if (mode == "udp")
    {
        SetUpUdp(hosts, hub, links, each, pace, sources);
    }
    else
    {
        SetUpBare(links, each, pace, sources);
    }
    for (uint32_t i = 0; i < count; ++i)
    {
        Simulator::ScheduleWithContext(hosts.Get(i)->GetId(), NanoSeconds(i % 64), &Source::Tick, sources[i].get());
    }

    auto start = std::chrono::steady_clock::now();
    Simulator::Run();
    std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    uint64_t events = Simulator::GetEventCount();
    std::cout << "{\"mode\": \"" << mode << "\", \"hosts\": " << count << ", \"sent\": " << g_sent
              << ", \"forwarded\": " << g_forwarded << ", \"delivered\": " << g_delivered
              << ", \"wall_s\": " << wall.count()
              << ", \"packets_per_s\": " << static_cast<double>(g_forwarded) / wall.count()
              << ", \"events\": " << events << "}" << std::endl;
    Simulator::Destroy();
    return 0;
}
